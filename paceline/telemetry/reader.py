"""Reads a run directory back: the only way the operator's commands learn about a run.

run = read_run(Path("runs/a"))
run.metrics[-1]["loss"], run.ledger(), run.events_of("choice")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.files import read_json, read_last_records, read_records
from paceline.telemetry.layout import SCHEMA, RunLayout
from paceline.telemetry.run_file import RunFile, load_run_file
from paceline.telemetry.tables import read_table

Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """What a run directory says, read at one moment."""

    layout: RunLayout
    run: RunFile
    metrics: list[Row]
    validation: list[Row]
    events: list[Row]

    def events_of(self, kind: str, **match: Any) -> list[Row]:
        return [e for e in self.events if e.get("kind") == kind and all(e.get(k) == v for k, v in match.items())]

    def choices(self, **match: Any) -> dict[str, Row]:
        """The last word on each matter that the run chose about; events that lack what they are about, or what was chosen, are none."""
        told = self.events_of("choice", **match)
        return {e["about"]: e for e in told if isinstance(e.get("about"), str) and "effective" in e}

    def beats(self, rank: int) -> list[Row]:
        return read_known(self.layout.heartbeat(rank))

    def newest_beats(self, rank: int) -> list[Row]:
        """The whole ones at the end of the file, the newest last, whatever their attempt."""
        return list(filter(is_known, read_last_records(self.layout.heartbeat(rank))))

    def last_beats(self) -> list[Row]:
        """The last whole beat of each rank that ever wrote one, whatever its attempt; only the ends of the files are read."""
        paths = sorted((self.layout.root / "heartbeat").glob("rank_*.jsonl"))
        known = (list(filter(is_known, read_last_records(path))) for path in paths)
        return [records[-1] for records in known if records]

    def ledger(self) -> list[Row]:
        """Every line of every rank's ledger, with its rank."""
        lines = []
        for path in sorted((self.layout.root / "ledger").glob("rank_*.jsonl")):
            rank = int(path.stem.removeprefix("rank_"))
            lines += [line | {"rank": rank} for line in read_records(path)]
        return lines

    @property
    def timed(self) -> list[Row]:
        """The rows of metrics whose times tell the pace: all but those of profiled steps."""
        return [row for row in self.metrics if row["step_ms"] is not None]

    def timing(self, rank: int) -> list[Row]:
        """A rank's own times (telemetry.timing_ranks=all); empty where it wrote none."""
        return latest_attempt(read_table(self.layout.timing(rank)), plan_starts(self.events), "step")

    def environment(self) -> Row:
        return dict(read_json(self.layout.environment))


def is_known(record: Row) -> bool:
    """Whether this version knows what a record means; one that names no version is a foreign writer's, and read as ours."""
    version = record.get("v", SCHEMA)
    return isinstance(version, int) and version <= SCHEMA


def read_known(path: Path) -> list[Row]:
    return list(filter(is_known, read_records(path)))


def plan_starts(events: list[Row]) -> dict[int, int]:
    """attempt -> the step it began at, as its plan says; an attempt that never got to its plan is not among them."""
    plans = (event for event in events if event.get("kind") == "plan")
    return {
        plan["attempt"]: plan.get("start_step", 0)
        for plan in plans
        if isinstance(plan.get("attempt"), int) and isinstance(plan.get("start_step", 0), int)
    }


def latest_attempt(rows: list[Row], starts: Mapping[int, int], *keys: str) -> list[Row]:
    """What counts of the rows that several attempts wrote: one per value of the keys, in the order of their steps.

    An attempt replaces everything that earlier ones did after the step it began at (`starts`: attempt -> that step). A row that does
    not say its attempt and step, as a foreign writer may leave it, counts for nothing.
    """
    kept: dict[tuple[Any, ...], Row] = {}
    counted = [row for row in rows if isinstance(row.get("attempt"), int) and isinstance(row.get("step"), int)]
    ends = {
        attempt: min((start for later, start in starts.items() if later > attempt), default=None)
        for attempt in {row["attempt"] for row in counted}
    }
    for row in sorted(counted, key=lambda row: row["attempt"]):
        end = ends[row["attempt"]]
        if end is None or row["step"] <= end:
            kept[tuple(row.get(name) for name in keys)] = row
    return sorted(kept.values(), key=lambda row: (row["step"], row["attempt"]))


def read_run(root: Path) -> Run:
    run_file = load_run_file(root)
    if run_file is None:
        raise UsageError(
            "not a run directory (it has no run.json)",
            str(root),
            "name a directory that `paceline train` printed, such as runs/sasrec-1a2b3c4d",
        )
    layout = RunLayout(root)
    events = read_known(layout.events)
    starts = plan_starts(events)
    return Run(
        layout,
        run_file,
        latest_attempt(read_table(layout.metrics), starts, "step"),
        latest_attempt(read_table(layout.validation), starts, "step", "split"),
        events,
    )
