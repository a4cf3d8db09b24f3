"""Run directories as runs leave them, written by hand: what is wrong with them is the test's."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.telemetry.events import EventLog
from paceline.telemetry.heartbeat import BeatWriter
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.run_file import Attempt, AttemptHost, RunFile
from paceline.telemetry.tables import METRICS_COLUMNS, TIMING_COLUMNS, Table


def write_run(
    root: Path,
    state: str = "running",
    reason: str = "",
    *,
    recipe: str = "sasrec",
    world_size: int = 2,
    pulses: str = "/nowhere",
    metrics: Sequence[Mapping[str, Any]] = (),
    timing: Mapping[int, Sequence[Mapping[str, Any]]] | None = None,
    events: Sequence[tuple[str, Mapping[str, Any]]] = (),
    beats: Mapping[int, Sequence[Mapping[str, Any]]] | None = None,
    logs: Mapping[str, str] | None = None,
    hosts: Sequence[AttemptHost] = (),
) -> RunLayout:
    layout = RunLayout(root)
    for name in ("heartbeat", "logs", "timing"):
        (root / name).mkdir(parents=True, exist_ok=True)
    run = RunFile("0123456789ab", recipe, "", "0", time.time(), {}, state, reason)
    run.attempts.append(Attempt(1, world_size, 4711, time.time(), pulses, ["paceline", "train"], state, reason, 120))
    run.attempts[0].hosts = list(hosts)
    run.save(layout)
    _write_table(Table(layout.metrics, METRICS_COLUMNS), metrics)
    for rank, rows in (timing or {}).items():
        _write_table(Table(layout.timing(rank), TIMING_COLUMNS), rows)
    log = EventLog(layout.events, "rank 0", 1)
    for kind, fields in events:
        log.write(kind, **fields)
    log.close()
    for rank, told in (beats or {}).items():
        writer = BeatWriter(layout.heartbeat(rank), rank, 1)
        for beat in told:
            writer.write(dict(beat))
        writer.close()
    for name, text in (logs or {}).items():
        (root / "logs" / name).write_text(text, encoding="utf-8")
    return layout


def _write_table(table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        table.write({name: value for name, value in row.items() if name in table.columns})
    table.close()


def failure(
    error: str, what: str, where: str = "", rank: int = 0, secondary: bool = False
) -> tuple[str, dict[str, Any]]:
    problems = [{"what": what, "where": where, "do": "do this"}]
    return "failure", {"error": error, "problems": problems, "rank": rank, "step": 12, "secondary": secondary}
