"""Measures the tiles that each kernel may have at one shape, on the GPU here, and finds the fastest of those that compute what the built-in one
does: compilers make mistakes, and a tile that nobody has launched on this GPU before may be such a one.

    tuned = tune(Case(1, 8192, 12, 2, 64, "bfloat16"), device)
    save_tuned(tuned)                                               # tile_store.py

A candidate is timed as part of its stage's forward or backward, in which all else stays the same, of rows of one document each. Each was run once
before, by another process (tile_trials.py): what that compiled lies in Triton's cache on the disk, and what it did not get through is not run here.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from paceline.recipes.nsa.kernels.fast_path import FAST
from paceline.recipes.nsa.kernels.stage_runs import Inputs, draw_inputs
from paceline.recipes.nsa.kernels.tile_store import Case, Tuned, find_place
from paceline.recipes.nsa.kernels.tile_trials import Outcome, is_unfit, prepare_pass, tell_end, try_candidates
from paceline.recipes.nsa.kernels.tiles import Tile, describe

Measure = Callable[[str, Tile], float | None]
"""ms of a kernel's pass with a tile; None: the tile is none for it"""

_COMPILING = 0.7
"""of the limit: the rest is for timing what is compiled by then"""
_WORTH = 0.98
"""of the built-in one's time: below it another tile is taken; above, the difference may be noise"""
_LIMIT = 0.02
"""of the difference between two tiles' results: they round in other places; of blocks, some have scores that are nearly equal"""
_TOKENS = 64
"""that are compared together"""
_AHEAD_CYCLES = 20_000_000
"""of the GPU's clock, about 10 ms: the host gets ahead of the device, and what is timed are kernels, not their launches"""


def tune(case: Case, device: torch.device, limit_s: float | None = None, repeats: int = 5) -> Tuned:
    """The fastest tile of every kernel; what cannot be measured within the limit keeps its built-in one."""
    begin = time.monotonic()
    ran = try_candidates(case, device, None if limit_s is None else begin + _COMPILING * limit_s)
    deadline = None if limit_s is None else begin + limit_s
    timer = Timer(draw_inputs(case, FAST, device), repeats, ran.outcomes)
    times = measure_all(case, timer, deadline, timer.was_tried)
    torch.cuda.empty_cache()
    fastest = {kernel: find_fastest(tried) for kernel, tried in times.items()}
    return Tuned(case, find_place(device), fastest, times, tuple(timer.refused), ran.complaints)


class Timer:
    """Times a tile that computes what the built-in one of its kernel does, or where that is a kernel for Hopper, the one of any GPU. The built-in
    one must be asked for first, one kernel after another."""

    def __init__(self, inputs: Inputs, repeats: int, outcomes: Sequence[Outcome] = ()) -> None:
        self.refused: list[str] = []
        """which tiles are wrong, and why; of those that merely do not fit nothing is said"""
        self._inputs, self._repeats, self._outcomes = inputs, repeats, outcomes
        self._kernel = ""
        self._expected: Sequence[Tensor] | None = None
        self._measure = ""
        """what gave that"""

    def was_tried(self, kernel: str, tile: Tile) -> bool:
        return any(job == (kernel, tile) for job, _ in self._outcomes)

    def __call__(self, kernel: str, tile: Tile) -> float | None:
        """The median of some calls; the first, which compiles, and the last are compared."""
        is_first = kernel != self._kernel
        if is_first:
            self._kernel, self._expected = kernel, None
            if "NBUF" in tile:
                # Compilers know its language least.
                self._try(kernel, replace(self._inputs.case, hopper=False).candidates(kernel)[0])
        reason = self._find_reason(kernel, tile)
        if not reason and not is_first and self._expected is None:
            self._tell_once(
                f"{kernel}: all others, for there is nothing to compare them with: the built-in one does not run here"
            )
            return None
        if reason:
            return self._refuse(kernel, tile, reason)
        try:
            ms, results = self._run(kernel, tile)
        except Exception as error:
            if not is_unfit(error):
                raise
            # Of its size it fits: where it cannot be compiled, somebody wants to know.
            return (
                self._refuse(kernel, tile, f"it cannot be compiled: {tell_end(str(error))}") if "NBUF" in tile else None
            )
        if self._expected is None:
            self._expected, self._measure = results[0], describe(tile)
        off = max(measure_difference(each, self._expected) for each in results)
        if off > _LIMIT:
            return self._refuse(kernel, tile, f"it does not compute what {self._measure} does: off by {off:.1g}")
        return ms

    def _try(self, kernel: str, tile: Tile) -> None:
        """It is what others are compared with, if it runs."""
        if self._find_reason(kernel, tile):
            return
        try:
            self._expected, self._measure = prepare_pass(self._inputs, kernel, tile)(), describe(tile)
        except Exception as error:
            if not is_unfit(error):
                raise

    def _find_reason(self, kernel: str, tile: Tile) -> str:
        """Why it must not be run; empty where nothing speaks against it."""
        return next((reason for job, reason in self._outcomes if job == (kernel, tile)), "")

    def _run(self, kernel: str, tile: Tile) -> tuple[float, list[Sequence[Tensor]]]:
        """ms, and the results of the first call and the last."""
        first = prepare_pass(self._inputs, kernel, tile)()
        times, last = [], first
        for _ in range(self._repeats):
            ms, last = _time(prepare_pass(self._inputs, kernel, tile))
            times.append(ms)
        return statistics.median(times), [first, last]

    def _refuse(self, kernel: str, tile: Tile, reason: str) -> float | None:
        self.refused.append(f"{kernel} {describe(tile)}: {reason}")
        return None

    def _tell_once(self, refused: str) -> None:
        if refused not in self.refused:
            self.refused.append(refused)


def measure_difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest that some tokens of a head differ by, in units of what they are, or of what is usual where they are less; of blocks, the share
    of queries that chose others.

    Some tokens, because one tile that is wrong is little of a long row. Infinite where something is not a number.
    """
    worst = 0.0
    for mine, first in zip(found, expected, strict=True):
        if mine.is_floating_point():
            # The first keys of a row are seen by all: their gradients, and what rounding does to them, are many times those of others.
            usual = _norms(first.float())
            off = (_norms(mine.float() - first.float()) / usual.clamp(min=usual.mean())).amax()
        else:
            off = (mine != first).any(-1).float().mean()
        # A maximum with what is not a number may be the other one.
        worst = max(worst, math.inf if off.isnan() else off.item())
    return worst


def _norms(states_BTHD: Tensor) -> Tensor:
    """Of every head and some tokens, as many as a tile has."""
    short = -states_BTHD.shape[1] % _TOKENS
    tokens_BnkHD = torch.unflatten(F.pad(states_BTHD, (0, 0, 0, 0, 0, short)), 1, (-1, _TOKENS))
    return tokens_BnkHD.square().sum((2, 4)).sqrt()


def measure_all(
    case: Case,
    measure: Measure,
    deadline: float | None = None,
    was_tried: Callable[[str, Tile], bool] = lambda *_: True,
) -> dict[str, list[tuple[Tile, float | None]]]:
    """Of every kernel the candidates with their times, the built-in one first, which is never left out. The others are from the deadline on, and
    so are those that no process ran before."""
    times: dict[str, list[tuple[Tile, float | None]]] = {}
    for kernel in case.kernels:
        first, *others = case.candidates(kernel)
        times[kernel] = [(first, measure(kernel, first))]
        for tile in filter(partial(was_tried, kernel), others):
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


def _time(call: Callable[[], Sequence[Tensor]]) -> tuple[float, Sequence[Tensor]]:
    event = partial(torch.cuda.Event, enable_timing=True)
    begin, end = event(), event()
    torch.cuda._sleep(_AHEAD_CYCLES)  # type: ignore[no-untyped-call]
    begin.record()
    found = call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)), found
