"""How well more ranks pay: weak and strong efficiency over world sizes, on a dense model through the real engine.

Weak: every rank keeps its batch, and a step should take no longer than on one rank. Strong: the batch is divided, and a step should take
1/n. Every rank has the same number of threads in all of the runs, so that nothing but the number of ranks differs; the runs of a repeat
follow each other, and are compared within it.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.bench.ranks import run_ranks
from paceline.cores import cpu_count

_WARM_STEPS = 5


@dataclass(frozen=True)
class Timed:
    """One run: a step's time on so many ranks."""

    repeat: int
    kind: str
    """weak or strong; on one rank both are the same"""
    ranks: int
    tokens: int
    """of a rank"""
    step_ms: float
    device: str


def count_runs(ranks: Sequence[int], repeats: int) -> int:
    return repeats * sum(1 if n == 1 else 2 for n in {1, *ranks})


def measure(
    ranks: Sequence[int] = (1, 2, 4),
    repeats: int = 3,
    parameters: float = 1e6,
    tokens: int | None = None,
    steps: int = 40,
) -> Iterator[Timed]:
    """Every world size of one repeat, then the next repeat; one rank is always measured, as what the others are compared with."""
    sizes = sorted({1, *ranks})
    threads = max(1, cpu_count() // sizes[-1])
    for repeat in range(repeats):
        whole = tokens
        for n in sizes:
            for kind in ("weak",) if n == 1 else ("weak", "strong"):
                # Rounded up: the slowest rank decides, and it has the larger part.
                mine = whole if whole is None or kind == "weak" else -(-whole // n)
                timed = _run(repeat, kind, n, threads, round(parameters), mine, steps)
                whole = whole or timed.tokens
                yield timed


def _run(repeat: int, kind: str, ranks: int, threads: int, parameters: int, tokens: int | None, steps: int) -> Timed:
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as scratch:
        settings = {"parameters": parameters, "tokens": tokens, "steps": steps + _WARM_STEPS, "save_every": None}
        told = run_ranks("paceline.bench.dense", settings | {"root": str(Path(scratch) / "run")}, ranks, threads)
    began = told["began"][-steps:]  # a warm-up of DDP comes before the first step
    step_ms = (began[-1] - began[0]) * 1e3 / (len(began) - 1)
    return Timed(repeat, kind, ranks, int(told["tokens"]), step_ms, str(told["device"]))


def summarize(timed: Sequence[Timed]) -> list[dict[str, Any]]:
    """One row per kind and world size: step time and efficiency, medians and spread over the repeats."""
    alone = {each.repeat: each.step_ms for each in timed if each.ranks == 1}
    rows = []
    for kind, ranks in dict.fromkeys((each.kind, each.ranks) for each in timed):
        mine = [each for each in timed if (each.kind, each.ranks) == (kind, ranks)]
        share = 1 if kind == "weak" else ranks
        found = [alone[each.repeat] / (share * each.step_ms) for each in mine]
        rows.append(
            {
                "kind": kind if ranks > 1 else "alone",
                "ranks": ranks,
                "tokens": mine[0].tokens,
                "repeats": len(mine),
                "step_ms": round(statistics.median(each.step_ms for each in mine), 3),
                "efficiency": round(statistics.median(found), 4),
                "efficiency_lowest": round(min(found), 4),
                "efficiency_highest": round(max(found), 4),
                "device": mine[0].device,
            }
        )
    return rows
