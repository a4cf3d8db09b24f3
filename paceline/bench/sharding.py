"""What each stage of sharding leaves on a rank, and what it costs: weights, gradients and moments in bytes, a step and a save in ms."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from paceline.bench.ranks import run_ranks

STAGES = (0, 1, 2, 3)
PARTS = ("weights", "gradients", "moments")


def measure(
    parameters: float = 1e7, nproc: int = 2, steps: int = 12, stages: Sequence[int] = STAGES, engine: str = "torch"
) -> Iterator[dict[str, Any]]:
    """One run of the dense model per stage, on so many ranks; see sharded.py for what it tells."""
    for stage in stages:
        with tempfile.TemporaryDirectory(prefix="paceline-bench-") as scratch:
            settings = {"parameters": round(parameters), "stage": stage, "steps": steps, "root": f"{scratch}/run"}
            settings["engine"] = engine
            yield summarize(run_ranks("paceline.bench.sharded", settings, nproc))


def summarize(told: dict[str, Any]) -> dict[str, Any]:
    """The most that any rank holds, in MiB, beside the rest."""
    held = {f"{part}_mib": max(rank[part] for rank in told["ranks"]) / 2**20 for part in PARTS}
    total = max(sum(rank[part] for part in PARTS) for rank in told["ranks"]) / 2**20
    peak = max(rank["peak"] for rank in told["ranks"]) / 2**20
    return {
        **{name: told[name] for name in ("device", "backend", "parameters", "stage")},
        "nproc": len(told["ranks"]),
        **{name: round(value, 2) for name, value in held.items()},
        "total_mib": round(total, 2),
        "peak_mib": round(peak, 2) if peak else None,
        "step_ms": round(told["step_ms"], 2),
        "stall_ms": round(told["stall_ms"], 2),
    }
