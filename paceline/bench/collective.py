"""Bandwidth of collectives by message size, among ranks that are started as a training starts them; the probe is preflight's.

measure(nproc=2, sizes=[4096, 1 << 20], repeats=50)
-> {"backend": "gloo", "rows": [{"op": "all_reduce", "bytes": 4096, "us": 412.0, "us_lowest": …, "bus_gb_per_s": 0.01, …}, …]}
"""

from __future__ import annotations

import re
import statistics
from typing import Any

from paceline.errors import UsageError
from paceline.preflight.probing import BUDGET_S, bus_bytes_per_s, probe
from paceline.preflight.subject import build_subject

_OPS = ("all_reduce", "all_gather", "reduce_scatter")
_REPEATS = 50
_TIMEOUT_S = 600.0
SIZES = "4K,64K,1M,16M,64M"
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def parse_sizes(text: str) -> list[int]:
    """Bytes of `4K,1M`: 2¹⁰, 2²⁰ and 2³⁰ times as many for K, M and G."""
    sizes = []
    for word in text.split(","):
        match = re.fullmatch(r"(\d+)([KMG]?)", word.strip())
        if match is None or not int(match[1]):
            what = f"--sizes {text}: {word.strip()!r} is not a size"
            raise UsageError(what, "command line", f"write sizes like --sizes {SIZES}")
        sizes.append(int(match[1]) * _UNITS[match[2]])
    return sizes


def measure(nproc: int | None, sizes: list[int], repeats: int | None) -> dict[str, Any]:
    """One start of the ranks, every size and operation in turn; one rank per GPU by default, two where that would be one."""
    visible = build_subject(None, {})[0].num_gpus
    ranks = nproc or max(2, visible)
    flags: dict[str, tuple[Any, str]] = {"launch.nproc": (ranks, "flag --nproc")}
    if ranks == 1:  # which needs no group by itself: then the cost of a collective is what is measured
        flags["parallel.backend"] = ("nccl" if visible else "gloo", "one rank")
    subject, _ = build_subject(None, flags)
    budget_s = BUDGET_S if repeats is None else None
    found = probe(
        subject,
        ops=_OPS,
        sizes=sizes,
        repeats=repeats or _REPEATS,
        budget_s=budget_s,
        product=False,
        timeout_s=_TIMEOUT_S,
    )
    rows = [_row(record, found["world_size"]) for record in found["collectives"]]
    return {name: found[name] for name in ("backend", "reason", "world_size", "torch", "nccl")} | {"rows": rows}


def _row(record: dict[str, Any], world_size: int) -> dict[str, Any]:
    if record["refused"]:
        return {"op": record["op"], "bytes": record["bytes"], "repeats": 0, "refused": record["refused"]}
    seconds = sorted(record["seconds"])
    middle = statistics.median(seconds)
    return {
        "op": record["op"],
        "bytes": record["bytes"],
        "repeats": len(seconds),
        "refused": None,
        "us": round(middle * 1e6, 1),
        "us_lowest": round(seconds[0] * 1e6, 1),
        "us_highest": round(seconds[-1] * 1e6, 1),
        "gb_per_s": round(record["bytes"] / middle / 1e9, 4),
        "bus_gb_per_s": round(bus_bytes_per_s(record, middle, world_size) / 1e9, 4),
    }
