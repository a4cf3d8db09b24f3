"""Whether the ranks of a run share its work evenly: from the times that each of them wrote, a row per rank and a verdict.

judge_timing({0: run.timing(0), 1: run.timing(1)}, world_size=2)
-> Imbalance("slow", "rank 1 makes a step 24 % longer: it loses 9.6 ms of 49 ms in forward, …", ranks=(RankTimes(0, …), …), …)

The test is that of a running run's stragglers (weighing.py), over every window of the tables: who waits least, as far as that is no chance.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from paceline.diagnose.blocks import BLOCK_STEPS, Block, build_window
from paceline.diagnose.rows import Row, read_number
from paceline.diagnose.spread import measure_spread
from paceline.diagnose.suspicion import LEAST_EXCESS
from paceline.diagnose.weighing import Weighing, sum_up

PHASES = ("data", "forward", "backward", "optimizer")
_TYPICAL = 5
"""windows by which a step's usual length is told"""
_LEAST_WINDOWS = 8
"""of which the noise is known well enough to call ranks even"""
_SURE = 2.5
"""standard errors of a mean that a median's may be, twice"""


@dataclass(frozen=True)
class RankTimes:
    """Medians of one rank over all windows, in ms per step."""

    rank: int
    step_ms: float
    data_ms: float
    forward_ms: float
    backward_ms: float
    """its own, without the wait"""
    wait_ms: float | None
    """for the others; None: the strategy does not tell"""
    optimizer_ms: float
    excess: float
    """of a step: by how much it is slower than the others"""


@dataclass(frozen=True)
class SlowRank:
    """One that the others had to wait for, as far as that is no chance."""

    rank: int
    phase: str
    """in which it loses most; elsewhere: in none that the host's clock sees"""
    excess: float
    lost_ms: float
    windows: int
    first_step: int
    last_step: int


@dataclass(frozen=True)
class Imbalance:
    """What the tables say."""

    verdict: Literal["even", "slow", "open", "alone", "unknown"]
    sentence: str
    num_windows: int = 0
    within: float | None = None
    """of a step: no rank is slower than the others by more, as far as is known"""
    ranks: tuple[RankTimes, ...] = ()
    slow: tuple[SlowRank, ...] = ()


def judge_timing(tables: Mapping[int, Sequence[Row]], world_size: int) -> Imbalance:
    """`tables`: rank -> its rows of timing/, those that count; a window that a rank did not time says nothing about any."""
    if world_size < 2:
        return Imbalance("alone", "one rank: there is nothing to compare")
    windows = list(_windows(tables)) if len(tables) == world_size else []
    if not windows:
        missing = [rank for rank in range(world_size) if not tables.get(rank)]
        whose = "no window was timed by all ranks" if not missing else f"there are no times of rank {missing[0]}"
        return Imbalance("unknown", whose)
    times = tuple(_sum_up_rank(rank, windows) for rank in sorted(tables))
    tells = bool(windows[0].waits_ms)
    how = "" if tells else "; by the time for data alone, because this strategy does not tell how long a rank waits"
    over = f"{len(windows)} windows, steps {_first_step(windows[0]):,} to {windows[-1].last_step:,}"
    slow = tuple(_find_slow(windows))
    bounds = {each.rank: each.excess + _doubt([window.excess[each.rank] for window in windows]) for each in times}
    suspect = max(times, key=lambda each: bounds[each.rank])
    within = max(0.0, bounds[suspect.rank])
    if slow:
        said = "; ".join(_describe(each, times, len(windows)) for each in slow)
        return Imbalance("slow", f"{said}{how}", len(windows), within, times, slow)
    if len(windows) >= _LEAST_WINDOWS and within <= LEAST_EXCESS:
        said = f"even within {within:.1%} of a step: nobody is slower than the others by more ({over})"
        return Imbalance("even", said + how, len(windows), within, times)
    said = f"not told: rank {suspect.rank} may be slower than the others by up to {within:.1%} of a step, and by {suspect.excess:.1%} as it looks ({over})"
    return Imbalance("open", f"{said}; more steps or a quieter machine would tell{how}", len(windows), within, times)


def _windows(tables: Mapping[int, Sequence[Row]]) -> Iterator[Block]:
    """Of all ranks beside each other, none shorter than a block of the watchdog's."""
    by_step = [{row["step"]: row for row in rows if read_number(row, "step_ms")} for rows in tables.values()]
    steps = sorted(set.intersection(*map(set, by_step))) if by_step else []
    rows = [dict(zip(tables, (found[step] for found in by_step), strict=True)) for step in steps]
    # The first windows of a strategy that tells its waits may have none yet.
    told = [of_ranks for of_ranks in rows if all(read_number(row, "wait_ms") is not None for row in of_ranks.values())]
    usual: deque[float] = deque(maxlen=_TYPICAL)
    gathered: list[dict[int, Row]] = []
    for of_ranks in told or rows:
        gathered.append(of_ranks)
        num_steps = sum(_steps(next(iter(each.values()))) for each in gathered)
        if num_steps < BLOCK_STEPS:
            continue
        usual.append(median(_mean([each[rank] for each in gathered], "step_ms") for rank in tables))
        spent = {
            rank: {phase: _mean([each[rank] for each in gathered], f"{phase}_ms") for phase in PHASES} | {"step": 0.0}
            for rank in tables
        }
        waits = {rank: _mean([each[rank] for each in gathered], "wait_ms") for rank in tables} if told else {}
        last_step = next(iter(of_ranks.values()))["step"]
        yield build_window(num_steps, last_step, median(usual), spent, waits)
        gathered = []


def _steps(row: Row) -> int:
    return int(read_number(row, "window_steps") or 1)


def _mean(rows: Sequence[Row], column: str) -> float:
    return sum((read_number(row, column) or 0.0) * _steps(row) for row in rows) / sum(map(_steps, rows))


def _sum_up_rank(rank: int, windows: Sequence[Block]) -> RankTimes:
    def middle(phase: str) -> float:
        # On a GPU one step of a window tells the wait, and all of them the phases: what is left may be below nothing.
        return max(0.0, median(window.own_ms[rank][phase] for window in windows))

    return RankTimes(
        rank,
        median(window.step_ms for window in windows),
        middle("data"),
        middle("forward"),
        middle("backward"),
        median(window.waits_ms[rank] for window in windows) if windows[0].waits_ms else None,
        middle("optimizer"),
        median(window.excess[rank] for window in windows),
    )


def _doubt(excesses: Sequence[float]) -> float:
    """How far beyond its median a rank's excess may lie."""
    return _SURE * measure_spread(excesses) / math.sqrt(len(excesses))


def _find_slow(windows: Sequence[Block]) -> Iterator[SlowRank]:
    """Whoever was accused at any moment: the test's error holds for all looks together, so no look need be the last."""
    weighing = Weighing(windows[0].excess)
    spans: dict[int, set[int]] = {}
    for number, window in enumerate(windows):
        weighing.add(window)
        for rank, blocks in weighing.accused().items():
            spans.setdefault(rank, set()).update(range(max(0, number + 1 - blocks), number + 1))
    for rank, numbers in sorted(spans.items()):
        # The first windows are where the noise is learned, and accuse nobody; one who was as slow in them was slow then, too.
        while min(numbers) > 0 and windows[min(numbers) - 1].excess[rank] > LEAST_EXCESS:
            numbers.add(min(numbers) - 1)
        during = [windows[number] for number in sorted(numbers)]
        loss = sum_up([rank], during)
        lost_ms = loss.total_ms if loss.cause == "elsewhere" else loss.lost_ms[loss.cause]
        first, last = _first_step(during[0]), during[-1].last_step
        yield SlowRank(rank, loss.cause, loss.excess, lost_ms, len(during), first, last)


def _first_step(window: Block) -> int:
    return window.last_step - window.steps + 1


def _describe(slow: SlowRank, times: Sequence[RankTimes], num_windows: int) -> str:
    step_ms = times[0].step_ms
    place = f"in {slow.phase}" if slow.phase != "elsewhere" else "in no phase that the host's clock sees"
    over = f"in {slow.windows} of {num_windows} windows, steps {slow.first_step:,} to {slow.last_step:,}"
    return f"rank {slow.rank} makes a step {slow.excess:.0%} longer: it loses {slow.lost_ms:.3g} ms of {step_ms:.3g} ms {place} ({over})"
