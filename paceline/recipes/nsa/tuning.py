"""Measures the tiles that each kernel may have at one shape, on the GPU here, and finds the fastest of those that compute what the built-in one
does: compilers make mistakes, and a tile that nobody has launched on this GPU before may be such a one.

    tuned = tune(Case(1, 8192, 12, 2, 64, "bfloat16"), device)
    save_tuned(tuned)                                               # tile_store.py

A candidate is timed as part of its stage's forward or backward, in which all else stays the same. Each was run once before, by another process
(tile_trials.py): what that compiled lies in Triton's cache on the disk, and what broke or hung it is not run here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from paceline.recipes.nsa.fast_path import FAST
from paceline.recipes.nsa.stage_runs import Inputs, draw_inputs
from paceline.recipes.nsa.tile_store import Case, Tuned, find_place
from paceline.recipes.nsa.tile_trials import is_unfit, prepare_pass, try_candidates
from paceline.recipes.nsa.tiles import Tile, describe

Measure = Callable[[str, Tile], float | None]
"""ms of a kernel's pass with a tile; None: the tile is none for it"""

_COMPILING = 0.7
"""of the limit: the rest is for timing what is compiled by then"""
_WORTH = 0.98
"""of the built-in one's time: below it another tile is taken; above, the difference may be noise"""
_LIMIT = 0.02
"""of the difference between two tiles' results: they round in other places; of blocks, some have scores that are nearly equal"""
_AHEAD_CYCLES = 20_000_000
"""of the GPU's clock, about 10 ms: the host gets ahead of the device, and what is timed are kernels, not their launches"""


def tune(case: Case, device: torch.device, limit_s: float | None = None, repeats: int = 5) -> Tuned:
    """The fastest tile of every kernel; what cannot be measured within the limit keeps its built-in one."""
    begin = time.monotonic()
    broken = try_candidates(case, device, None if limit_s is None else begin + _COMPILING * limit_s)
    deadline = None if limit_s is None else begin + limit_s
    timer = Timer(draw_inputs(case, FAST, device), repeats, broken)
    times = measure_all(case, timer, deadline)
    torch.cuda.empty_cache()
    fastest = {kernel: find_fastest(tried) for kernel, tried in times.items()}
    return Tuned(case, find_place(device), fastest, times, tuple(timer.refused))


class Timer:
    """Times a tile that computes what the built-in one of its kernel does, which must be asked for first."""

    def __init__(self, inputs: Inputs, repeats: int, broken: Sequence[tuple[str, Tile]] = ()) -> None:
        self.refused: list[str] = []
        """which tiles are wrong, and why; of those that merely do not fit nothing is said"""
        self._inputs, self._repeats, self._broken = inputs, repeats, broken
        self._expected: dict[str, Sequence[Tensor]] = {}

    def __call__(self, kernel: str, tile: Tile) -> float | None:
        """The median of some calls after one that compiles, and is compared."""
        try:
            reason = self._find_fault(kernel, tile)
            if reason:
                self.refused.append(f"{kernel} {describe(tile)}: {reason}")
                return None
            return statistics.median(_time(prepare_pass(self._inputs, kernel, tile)) for _ in range(self._repeats))
        except Exception as error:
            if not is_unfit(error):
                raise
            return None

    def _find_fault(self, kernel: str, tile: Tile) -> str:
        if (kernel, tile) in self._broken:
            return "a process that ran it broke off or hung"
        found = prepare_pass(self._inputs, kernel, tile)()
        off = measure_difference(found, self._expected.setdefault(kernel, found))
        # Not "above": what is not a number is above nothing.
        return "" if off <= _LIMIT else f"it does not compute what the built-in one does: off by {off:.1g}"


def measure_difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest of the tensors' differences, by norms; of whole numbers, which are choices, the share of those that differ."""
    worst = torch.zeros((), dtype=torch.float64, device=found[0].device)
    for mine, first in zip(found, expected, strict=True):
        if mine.is_floating_point():
            norm = first.double().norm().clamp(min=torch.finfo(torch.float64).tiny)
            difference = (mine.double() - first.double()).norm() / norm
        else:
            difference = (mine != first).double().mean()
        # As one number is not a number, so is their maximum.
        worst = torch.maximum(worst, difference)
    return worst.item()


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


def _time(call: Callable[[], Any]) -> float:
    event = partial(torch.cuda.Event, enable_timing=True)
    begin, end = event(), event()
    torch.cuda._sleep(_AHEAD_CYCLES)  # type: ignore[no-untyped-call]
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))
