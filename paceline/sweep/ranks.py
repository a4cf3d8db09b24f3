"""What the ranks of a trial did, each by itself: the record of the ledger, and the rows of ranks.csv.

judge_ranks(run, read_timing(run, warmup_steps=20))
-> {"verdict": "even", "sentence": "even within 1.2% of a step: …", "num_windows": 98, "table": [{"rank": 0, "data_ms": 0.4, …}, …], …}
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from paceline.diagnose.finding import finding_from_record
from paceline.diagnose.imbalance import judge_timing
from paceline.telemetry.numbers import is_finite
from paceline.telemetry.reader import Row, Run

TIMES = ("step_ms", "data_ms", "forward_ms", "backward_ms", "wait_ms", "optimizer_ms")
_KINDS = ("straggler", "slow_host")


def read_timing(run: Run, warmup_steps: int) -> dict[int, list[Row]]:
    """rank -> its own windows after the warm-up; a rank that wrote none is not among them."""
    world_size = run.run.attempts[-1].world_size if run.run.attempts else 1
    tables: dict[int, list[Row]] = {}
    for rank in range(world_size if world_size > 1 else 0):
        with contextlib.suppress(OSError):
            rows = [row for row in run.timing(rank) if row["step"] > warmup_steps]
            tables |= {rank: rows} if rows else {}
    return tables


def measure_spread(tables: Mapping[int, Sequence[Row]]) -> float | None:
    """How much longer the rank that waits most waits than the one that waits least: the slow one waits least."""
    waits = []
    for rows in tables.values():
        told = [row["wait_ms"] for row in rows if is_finite(row.get("wait_ms"))]
        waits += [statistics.fmean(told)] if told else []
    return max(waits) - min(waits) if len(waits) > 1 else None


def judge_ranks(run: Run, tables: Mapping[int, Sequence[Row]]) -> dict[str, Any]:
    """The table of ranks and the verdict on them, as plain data; what the run's supervisor saw meanwhile is said beside it."""
    world_size = run.run.attempts[-1].world_size if run.run.attempts else 1
    found = judge_timing(tables, world_size)
    sentence = found.sentence
    if found.verdict == "unknown":
        sentence += "; telemetry.timing_ranks=all has each rank write its own"
    seen = _recall(run) if found.verdict in ("even", "open", "unknown") else []
    if seen:
        sentence += f"; the run's supervisor, who sees more of a CPU, said: {'; '.join(seen)}"
    return {
        "verdict": found.verdict,
        "sentence": sentence,
        "num_windows": found.num_windows,
        "within": found.within,
        "slow": [asdict(each) for each in found.slow],
        "table": [asdict(each) for each in found.ranks],
    }


def _recall(run: Run) -> list[str]:
    """Who was called a straggler while the trial ran, the last word on each."""
    latest: dict[object, str] = {}
    for event in run.events:
        finding = finding_from_record(event.get("finding")) if event.get("kind") in ("finding", "incident") else None
        if finding is not None and finding.kind in _KINDS:
            latest[finding.subject] = finding.what
    return list(latest.values())


def has_rank_table(described: Mapping[str, Any]) -> bool:
    return bool(described["plan"].get("rank_table"))


def compared_trials(described: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Those that count and know of their ranks, in the order of the cases."""
    places = {case["name"]: case["rank"] for case in described["cases"]}
    known = [trial for trial in described["trials"] if trial["is_counted"] and trial.get("ranks")]
    return sorted(known, key=lambda trial: (places[trial["case"]], trial["round"]))


def say_verdicts(described: Mapping[str, Any]) -> list[str]:
    """A line per trial."""
    return [
        f"{trial['case']}, round {trial['round']}: {trial['ranks']['sentence']}" for trial in compared_trials(described)
    ]


def rank_rows(described: Mapping[str, Any]) -> list[dict[str, Any]]:
    """ranks.csv: a row per trial and rank; a trial of one rank has a row without times."""
    rows = []
    for trial in compared_trials(described):
        ranks = trial["ranks"]
        head = {"group": trial["case"], "repeat": trial["round"], "trial": trial["trial"]}
        about = {"verdict": ranks["verdict"], "num_windows": ranks["num_windows"], "sentence": ranks["sentence"]}
        slow = {each["rank"]: each for each in ranks["slow"]}
        for each in ranks["table"] or [{}]:
            guilt = slow.get(each.get("rank"), {})
            times = {name: each.get(name) for name in ("rank", *TIMES, "excess")}
            rows.append(head | times | {"slow_in": guilt.get("phase"), "slow_windows": guilt.get("windows")} | about)
    return rows
