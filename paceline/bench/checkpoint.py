"""What a checkpoint costs the training: the time that steps lose from a save until its files are on the disk.

Everything is measured within one run: the steps while a save is under way against the steps while none is. `blocked` is the time that
the training thread spends in the save; `stall` is all that was lost, with what the writing in the background takes from the steps.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.bench.ranks import run_ranks
from paceline.errors import PacelineError
from paceline.telemetry.reader import read_run

_TARGET_STEPS = 1.0
_WARM_STEPS = 5


@dataclass(frozen=True)
class Stall:
    """One save."""

    step: int
    blocked_ms: float
    stall_ms: float
    seconds: float
    bytes: int


@dataclass(frozen=True)
class Measured:
    """A run with saves."""

    device: str
    parameters: int
    tokens: int
    quiet_ms: list[float]
    """the steps while no save is under way"""
    stalls: list[Stall]

    @property
    def step_ms(self) -> float:
        return statistics.median(self.quiet_ms)

    def summary(self) -> dict[str, Any]:
        lost = [stall.stall_ms for stall in self.stalls]
        return {
            "device": self.device,
            "parameters": self.parameters,
            "tokens": self.tokens,
            "saves": len(self.stalls),
            "gigabytes": round(self.stalls[0].bytes / 1e9, 3),
            "step_ms": round(self.step_ms, 2),
            "quiet_steps": len(self.quiet_ms),
            "blocked_ms": round(statistics.median(stall.blocked_ms for stall in self.stalls), 2),
            "stall_ms": round(statistics.median(lost), 2),
            "stall_ms_lowest": round(min(lost), 2),
            "stall_ms_highest": round(max(lost), 2),
            "stall_steps": round(statistics.median(lost) / self.step_ms, 3),
            "seconds": round(statistics.median(stall.seconds for stall in self.stalls), 2),
            "target_steps": _TARGET_STEPS,
        }


def measure(parameters: float = 1e7, tokens: int | None = None, saves: int = 9, save_every: int = 20) -> Measured:
    """One run of (saves + 1) × save_every steps; the first save counts like the others."""
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as scratch:
        root = Path(scratch) / "run"
        steps = (saves + 1) * save_every
        settings = {"parameters": round(parameters), "tokens": tokens, "steps": steps, "save_every": save_every}
        told = run_ranks("paceline.bench.dense", settings | {"root": str(root)}, nproc=1)
        events = [event for event in read_run(root).events_of("checkpoint") if event["step"] < steps]
    quiet, stalls = find_stalls(told["began"], events)
    return Measured(told["device"], told["parameters"], told["tokens"], quiet, stalls)


def find_stalls(began: list[float], saves: list[dict[str, Any]]) -> tuple[list[float], list[Stall]]:
    """(steps without a save, in ms; what each save cost). `began[i]` is when step i + 1 began."""
    # Interval s - 1 is step s with everything until the next one begins: a save after step s lies in it.
    intervals = [(after - before) * 1e3 for before, after in itertools.pairwise(began)]
    groups = _group_saves(began, saves)
    busy = {i for span, _ in groups for i in span}
    quiet = {i: value for i, value in enumerate(intervals) if i >= _WARM_STEPS and i not in busy}
    if not quiet:
        what = f"there is no step without a save under way: {len(saves)} of them in {len(intervals)} steps"
        raise PacelineError(what, f"one took {saves[0]['seconds']} s", "save less often: a larger --every")
    stalls = []
    for index, (span, together) in enumerate(groups):
        # Against its own surroundings, because machines drift; their mean, because what is compared with it is a sum.
        begin = groups[index - 1][0].stop if index else 0
        end = groups[index + 1][0].start if index + 1 < len(groups) else len(intervals)
        around = [value for i, value in quiet.items() if begin <= i < end]
        mean_ms = statistics.fmean(around or quiet.values())
        lost_ms = sum(intervals[i] - mean_ms for i in span) / len(together)
        stalls += [Stall(save["step"], save["stall_ms"], lost_ms, save["seconds"], save["bytes"]) for save in together]
    return list(quiet.values()), stalls


def _group_saves(began: list[float], saves: list[dict[str, Any]]) -> list[tuple[range, list[dict[str, Any]]]]:
    """The intervals of each save; saves that overlap (a disk that was slow once) cannot be told apart, and share what they cost."""
    groups: list[tuple[range, list[dict[str, Any]]]] = []
    for save in saves:
        span = _find_span(began, save)
        if groups and span.start < groups[-1][0].stop:
            before, together = groups[-1]
            groups[-1] = range(before.start, max(before.stop, span.stop)), [*together, save]
        else:
            groups.append((span, [save]))
    return groups


def _find_span(began: list[float], save: dict[str, Any]) -> range:
    """The intervals from the step that was saved until its files are on the disk."""
    first = save["step"] - 1
    end = began[first + 1] + save["seconds"]
    last = next((i for i in range(first, len(began) - 1) if began[i + 1] >= end), len(began) - 2)
    return range(first, last + 1)
