"""What the gradients of a table bring to a rank in a step, as rows, beside what dense ones would; see lookups.py for what is trained."""

from __future__ import annotations

import tempfile
from typing import Any

from paceline.bench.ranks import run_ranks


def measure(
    rows: int = 3_300_000,
    width: int = 512,
    lookups: int = 35_328,
    nproc: int = 2,
    steps: int = 8,
    optimizer: str = "sgd",
    compression: str = "none",
) -> dict[str, Any]:
    """One run on so many ranks, each of which has the whole table."""
    settings: dict[str, Any] = {"rows": rows, "width": width, "lookups": lookups, "steps": steps}
    settings |= {"optimizer": optimizer, "compression": compression}
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as scratch:
        told = run_ranks("paceline.bench.lookups", {**settings, "root": f"{scratch}/run"}, nproc)
    return told | {"ratio": round(told["dense_bytes"] / told["bytes"], 1) if told["bytes"] else None}
