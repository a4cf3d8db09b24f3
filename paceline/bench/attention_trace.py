"""The attention of a training run as its own profile shows it, against what the run promised when it began.

    audit_run(Path("runs/demo"))   -> Audit(promised="flash", seen=[Seen("flash", …)], wrong="", traces=[…])

Reads any trace that torch.profiler exports (Chrome's format, also gzipped). Standard library only.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.engine.kernels import OWN, Seen, find_attention, is_own
from paceline.engine.promise import check_promise, name_attentions, read_promise
from paceline.errors import UsageError
from paceline.telemetry.reader import read_run


@dataclass(frozen=True)
class Audit:
    """What was promised, what ran, and what is wrong with that; empty: nothing."""

    promised: str
    requested: str
    seen: list[Seen]
    wrong: str
    traces: list[str]
    branches: dict[str, list[str]]
    """of each that was seen: which attentions of the model it was promised for, where they have names"""

    def to_record(self) -> dict[str, Any]:
        return asdict(self)


def audit_run(root: Path) -> Audit:
    """Audits the newest profile of a run, all ranks that wrote one."""
    run = read_run(root)
    choices = run.choices()
    promise = choices.get("attention.backend")
    if promise is None:
        what = "the run did not record which attention it uses (no choice attention.backend)"
        raise UsageError(what, str(root / "events.jsonl"), "its recipe has none, or it was trained by an older version")
    traces = find_traces(root)
    promised = str(promise["effective"])
    own = {*OWN, *filter(is_own, read_promise(promised).values())}
    by_rank = [find_attention(read_trace(trace), own) for trace in traces]
    requested = str(choices.get("attention.impl", {}).get("requested", "unknown"))
    wrong = dict.fromkeys(filter(None, (check_promise(promised, seen) for seen in by_rank)))
    seen = _add_up(by_rank)
    branches = {each.backend: name_attentions(promised, each.backend) for each in seen}
    return Audit(promised, requested, seen, "; ".join(wrong), [str(trace) for trace in traces], branches)


def find_traces(root: Path) -> list[Path]:
    """The newest trace below RUN/profile, and those beside it: one per rank."""
    folder = root / "profile"
    traces = [path for path in folder.glob("**/*") if path.name.endswith((".json", ".json.gz")) and _is_trace(path)]
    if not traces:
        raise UsageError(
            "the run has no profile", str(folder), "go on with telemetry.profile.start_step=N, then ask again"
        )
    newest = max(traces, key=lambda path: path.stat().st_mtime)
    return sorted(path for path in traces if path.parent == newest.parent)


def read_trace(path: Path) -> Iterator[tuple[str, int, float]]:
    """(name, calls, time in ms) of each kernel; of each operator where the trace has no kernels, as on a CPU."""
    events = read_events(path)
    totals: dict[str, dict[str, tuple[int, float]]] = {"kernel": {}, "cpu_op": {}}
    for event in events:
        group = totals.get(event.get("cat", ""))
        if group is not None:
            count, time_us = group.get(event["name"], (0, 0.0))
            group[event["name"]] = (count + 1, time_us + float(event.get("dur", 0)))
    chosen = totals["kernel"] or totals["cpu_op"]
    return ((name, count, time_us / 1e3) for name, (count, time_us) in chosen.items())


def read_events(path: Path) -> list[dict[str, Any]]:
    """Everything in a trace."""
    try:
        events: list[dict[str, Any]] = json.loads(_read(path))["traceEvents"]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"not a trace of torch.profiler: {error}", str(path), "profile the run again") from error
    return events


def _add_up(by_rank: Iterable[Sequence[Seen]]) -> list[Seen]:
    """The same backend on several ranks as one."""
    found: dict[str, Seen] = {}
    for each in itertools.chain.from_iterable(by_rank):
        before = found.get(each.backend, Seen(each.backend, (), 0, 0.0))
        names = tuple(dict.fromkeys((*before.names, *each.names)))
        found[each.backend] = Seen(each.backend, names, before.count + each.count, before.time_ms + each.time_ms)
    return list(found.values())


def _is_trace(path: Path) -> bool:
    """By its beginning, which holds what the profiler knows of the devices: other JSON may lie beside it."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return b'"traceEvents"' in file.read(1 << 20)
    except (OSError, EOFError):
        return False


def _read(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
