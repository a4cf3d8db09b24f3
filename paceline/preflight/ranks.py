"""Ranks that are really started: a collective among them with its bandwidth, and a matrix product on each device."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.errors import PacelineError
from paceline.preflight.check import Check, fail, ok, warn
from paceline.preflight.probing import bus_bytes_per_s, probe
from paceline.preflight.subject import Subject

_SIZES = (4096, 16 << 20)
_REPEATS = 20
_SLOW_GPU, _SLOW_CPU = 0.85, 0.5
"""of the fastest rank's rate; on a CPU other programs disturb"""
_LOW = 0.4
"""of a GPU's peak by its data sheet"""


def check_ranks(subject: Subject) -> list[Check]:
    """Starts the ranks once for both."""
    try:
        found = probe(subject, ops=["all_reduce"], sizes=_SIZES, repeats=_REPEATS, product=True)
    except PacelineError as error:
        problem = error.problems[0]
        ranks = f"{subject.world_size} rank{'' if subject.world_size == 1 else 's'}"
        return [fail("collective", f"{ranks} could not be started and measured: {problem.what}", problem.do)]
    return [judge_collectives(found), *judge_products(found["products"])]


def judge_collectives(found: Mapping[str, Any]) -> Check:
    world_size, backend = found["world_size"], found["backend"]
    if not found["collectives"]:
        return ok("collective", f"none needed: {found['reason']}")
    medians = [(record, statistics.median(record["seconds"])) for record in found["collectives"]]
    (_, small_s), (large, large_s) = medians[0], medians[-1]
    rate = bus_bytes_per_s(large, large_s, world_size)
    size = f"{large['bytes'] >> 20} MiB"
    nccl = f" {found['nccl']}" if backend == "nccl" and found["nccl"] else ""
    text = f"all-reduce on {world_size} ranks over {backend}{nccl}: {small_s * 1e6:,.0f} µs for 4 KiB"
    text += f", {large_s * 1e3:.1f} ms for {size}"
    if world_size > 1:
        text += f" ({rate / 1e9:.2f} GB/s per link)"
    values = {"backend": backend, "world_size": world_size, "bus_bytes_per_s": round(rate), "nccl": found["nccl"]}
    return ok("collective", text, small_us=round(small_s * 1e6, 1), large_ms=round(large_s * 1e3, 3), **values)


def judge_products(products: Sequence[Mapping[str, Any]]) -> list[Check]:
    """A device stands out against the fastest of its kind, and against its data sheet."""
    shown = ", ".join(_rate(one["flops"]) for one in products)
    first = products[0]
    about = f"{first['type']}, {first['size']}²: {shown}"
    peaks = {one["peak_flops"] for one in products}
    if len(peaks) == 1 and first["peak_flops"]:
        share = statistics.median(one["flops"] for one in products) / first["peak_flops"]
        about += f" ({share:.0%} of the peak)"
    slow = [(one, reason) for one in products if (reason := _is_slow(one, products))]
    values = {"flops": {one["rank"]: round(one["flops"]) for one in products}}
    if not slow:
        return [ok("matrix product", about, **values)]
    do = "see nvidia-smi -q -d PERFORMANCE; leave it out with --gpus" if _is_gpu(first) else "see what else runs (top)"
    who = "; ".join(f"rank {one['rank']} ({one['device']}, {one['name']}) {reason}" for one, reason in slow)
    return [warn("matrix product", f"{who}; {about}", do, slow=[one["rank"] for one, _ in slow], **values)]


def _is_slow(one: Mapping[str, Any], products: Sequence[Mapping[str, Any]]) -> str:
    best = max(other["flops"] for other in products if other["name"] == one["name"])
    if one["flops"] < best * (_SLOW_GPU if _is_gpu(one) else _SLOW_CPU):
        return f"reaches {one['flops'] / best:.0%} of the fastest"
    if one["peak_flops"] and one["flops"] < _LOW * one["peak_flops"]:
        return f"reaches {one['flops'] / one['peak_flops']:.0%} of its peak"
    return ""


def _is_gpu(one: Mapping[str, Any]) -> bool:
    return bool(one["device"] != "cpu")


def _rate(flops: float) -> str:
    return f"{flops / 1e12:,.0f} TFLOP/s" if flops >= 1e13 else f"{flops / 1e9:,.0f} GFLOP/s"
