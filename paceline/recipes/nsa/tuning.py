"""Measures the tiles that each kernel may have at one shape, on the GPU here, and finds the fastest.

    tuned = tune(Case(1, 8192, 12, 2, 64, "bfloat16"), device)
    save_tuned(tuned)                                               # tile_store.py
    python -m paceline.recipes.nsa.tuning '{"device": 0, "case": {…}, "jobs": [["window_forward", {…}], …]}'     # what compiles

A candidate is timed as part of its stage's forward or backward, in which all else stays the same. What takes time is compiling: several
processes run each candidate once, and what they compiled lies in Triton's cache on the disk when it is timed.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

from paceline.cores import cpu_count
from paceline.parentage import die_with_parent
from paceline.recipes.nsa.chosen_attention import most_parts
from paceline.recipes.nsa.fast_frame import fast
from paceline.recipes.nsa.fast_path import FAST
from paceline.recipes.nsa.pattern import Pattern
from paceline.recipes.nsa.stage_runs import Inputs, build_runs, draw_inputs
from paceline.recipes.nsa.tile_store import Case, Tuned, find_place
from paceline.recipes.nsa.tiles import KERNELS, Tile, Tiles

Job = tuple[str, Tile]
"""a kernel, and a tile for it"""
Measure = Callable[[str, Tile], float | None]
"""ms of a kernel's pass with a tile; None: the tile does not fit"""

_COMPILING = 0.7
"""of the limit: the rest is for timing what is compiled by then"""
_WORTH = 0.98
"""of the built-in one's time: below it another tile is taken; above, the difference may be noise"""
_AHEAD_CYCLES = 20_000_000
"""of the GPU's clock, about 10 ms: the host gets ahead of the device, and what is timed are kernels, not their launches"""


def tune(case: Case, device: torch.device, limit_s: float | None = None, repeats: int = 5) -> Tuned:
    """The fastest tile of every kernel; what cannot be measured within the limit keeps its built-in one."""
    begin = time.monotonic()
    compile_candidates(case, device, None if limit_s is None else begin + _COMPILING * limit_s)
    deadline = None if limit_s is None else begin + limit_s
    times = measure_all(case, partial(time_tile, draw_inputs(case, FAST, device), repeats=repeats), deadline)
    torch.cuda.empty_cache()
    return Tuned(case, find_place(device), {kernel: find_fastest(tried) for kernel, tried in times.items()}, times)


def measure_all(
    case: Case, measure: Measure, deadline: float | None = None
) -> dict[str, list[tuple[Tile, float | None]]]:
    """Of every kernel the candidates with their times, the built-in one first, which is never left out; the others are from the deadline on."""
    times: dict[str, list[tuple[Tile, float | None]]] = {}
    for kernel in case.kernels:
        first, *others = case.candidates(kernel)
        times[kernel] = [(first, measure(kernel, first))]
        for tile in others:
            if deadline is not None and time.monotonic() > deadline:
                break
            times[kernel].append((tile, measure(kernel, tile)))
    return times


def find_fastest(tried: Sequence[tuple[Tile, float | None]]) -> Tile:
    """The built-in one, unless another is faster by more than noise."""
    built_in, its_ms = tried[0]
    measured = [(ms, tile) for tile, ms in tried if ms is not None]
    if not measured:
        return built_in
    least, fastest = min(measured, key=lambda each: each[0])
    return fastest if its_ms is None or least < _WORTH * its_ms else built_in


def time_tile(inputs: Inputs, kernel: str, tile: Tile, repeats: int) -> float | None:
    """The median of some calls after one that compiles; with `repeats=0` only that one. None: no such kernel can be had."""
    from triton.errors import TritonError

    tiles = Tiles({kernel: tile}, inputs.case.torch_dtype)
    stage, is_backward = kernel.partition("_")[0], kernel.endswith("gradient")
    forward, flows_to = build_runs(inputs, FAST, replace(fast(inputs.frame), tiles=tiles))[stage]
    times = []
    try:
        for _ in range(repeats + 1):
            if is_backward:
                found = forward()
                upstream = [torch.ones_like(each) for each in found]
                times.append(_time(partial(torch.autograd.grad, found, flows_to, upstream)))
            else:
                with torch.no_grad():
                    times.append(_time(forward))
    except TritonError:
        return None
    except RuntimeError as error:
        # So a pass of Triton's compiler says that it failed; all else is no fault of the tile.
        if "PassManager::run failed" not in str(error):
            raise
        return None
    return statistics.median(times[1:] or times)


def _time(call: Callable[[], Any]) -> float:
    event = partial(torch.cuda.Event, enable_timing=True)
    begin, end = event(), event()
    torch.cuda._sleep(_AHEAD_CYCLES)  # type: ignore[no-untyped-call]
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def compile_candidates(case: Case, device: torch.device, deadline: float | None) -> None:
    """Into Triton's cache, by as many processes as there are cores and memory for; what they leave undone is compiled when it is timed."""
    shares = share_out(case, min(cpu_count(), _count_fitting(case, device)))
    if len(shares) < 2:
        return
    told = {"device": device.index or 0, "case": asdict(case)}
    command = [sys.executable, "-m", __name__]
    children = [
        subprocess.Popen(
            [*command, json.dumps(told | {"jobs": jobs})], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for jobs in shares
    ]
    for child in children:
        try:
            child.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def share_out(case: Case, processes: int) -> list[list[Job]]:
    """All candidates among so many processes; the same kernel with the same tile is one process's, for whichever branch."""
    by_compiled: dict[str, list[Job]] = {}
    for kernel in case.kernels:
        for tile in case.candidates(kernel):
            by_compiled.setdefault(f"{KERNELS[kernel]} {tile}", []).append((kernel, tile))
    groups, processes = list(by_compiled.values()), max(1, processes)
    shares = [[job for group in groups[i::processes] for job in group] for i in range(processes)]
    return [share for share in shares if share]


def _count_fitting(case: Case, device: torch.device) -> int:
    """Processes that the GPU has memory for: tensors of the size of the queries, what queries found, and torch itself."""
    queries = case.rows * case.length * case.heads * case.head_width * case.torch_dtype.itemsize
    found = min(case.pattern.selected * queries, most_parts(device))
    return int(torch.cuda.mem_get_info(device)[0] // (12 * queries + found + 3 * 2**30))


def main(argv: Sequence[str]) -> int:
    told: dict[str, Any] = json.loads(argv[0])
    case = Case(**told["case"] | {"pattern": Pattern(**told["case"]["pattern"])})
    device = torch.device("cuda", told["device"])
    torch.cuda.set_device(device)
    inputs = draw_inputs(case, FAST, device)
    for kernel, tile in told["jobs"]:
        time_tile(inputs, kernel, tile, repeats=0)
    return 0


if __name__ == "__main__":
    die_with_parent(os.getppid())
    sys.exit(main(sys.argv[1:]))
