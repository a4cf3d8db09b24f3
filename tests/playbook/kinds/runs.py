"""Small run directories, written as the owner and rank 0 write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.launch.claim import Claim, claim_run
from paceline.recipes.job import load_job
from paceline.telemetry.events import EventLog
from paceline.telemetry.tables import METRICS_COLUMNS, Table

Row = Mapping[str, Any]


def write_run(
    root: Path, rows: Sequence[Row], events: Sequence[tuple[str, Row]] = (), world_size: int = 1, unit: str = "items"
) -> Path:
    """A finished run of sasrec with these rows of metrics.csv, of five steps each unless they say otherwise."""
    job = load_job("sasrec", ["data.users=40", "launch.gpus=[]"])
    claim = claim_run(root, job.describe_run(["paceline"], job.identity()), world_size)
    assert isinstance(claim, Claim)
    log = EventLog(claim.layout.events, "rank 0", claim.attempt)
    log.write("plan", start_step=0, total_steps=5 * len(rows), unit=unit)
    for kind, fields in events:
        log.write(kind, **fields)
    log.close()
    table = Table(claim.layout.metrics, METRICS_COLUMNS)
    for number, row in enumerate(rows, 1):
        common = {
            "attempt": claim.attempt,
            "step": 5 * number,
            "window_steps": 5,
            "step_ms": 10.0,
            "samples": 5 * number,
        }
        table.write(common | dict(row))
    table.close()
    claim.finish("finished", "length", 5 * len(rows), 0)
    claim.release()
    return root
