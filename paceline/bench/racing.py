"""Replays sweeps on traces fitted to recorded ones, full grid against race: what a race costs, and how often it is right.

A replay draws 36 cells and a machine; the grid and the race then run on machines of the same kind with luck of their own. A
race is right if its leader is the best cell, or within the margin of it (and trains well); that it agrees with the grid is counted,
too. Where no cell differs from another every choice is right, so a null sweep is right if no case was called slower.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paceline.bench.racing_world import KINDS, Cell, Trace, World, build_cells, load_traces
from paceline.sweep.evidence import RaceSettings
from paceline.sweep.racer import Racer

TARGET_COST = 0.25
TARGET_RIGHT = 0.95
NOISE = 0.02


@dataclass(frozen=True)
class Replay:
    """One sweep, both ways."""

    trace: str
    kind: str
    noise: float
    grid_repeats: int
    grid_device_s: float
    race_device_s: float
    grid_right: bool
    race_right: bool
    is_agreed: bool
    """both winners are the same, or truly within the margin"""
    is_claim_wrong: bool
    """a case was said to be slower than the leader, and is as good (null) or better by more than the margin"""
    is_undecided: bool
    """the budget ended before every verdict was certain"""
    race_trials: int
    grid_trials: int

    @property
    def ratio(self) -> float:
        return self.race_device_s / self.grid_device_s


def replay(trace: Trace, kind: str, seed: int, settings: RaceSettings | None = None) -> Replay:
    rng = np.random.default_rng([seed, 1])
    cells = build_cells(trace, kind, rng)
    settings = settings or trace.settings()
    grid, grid_world = run_sweep(trace, cells, replace(settings, racing=False), seed * 2)
    race, race_world = run_sweep(trace, cells, settings, seed * 2 + 1)
    truth = {cell.name: cell.truth(trace.steps) if cell.is_sound else -math.inf for cell in cells}
    best, margin = max(truth.values()), math.log1p(settings.margin)
    chosen = race.ranking().leader or cells[0].name
    whole = grid.ranking().leader or cells[0].name
    slower = [truth[case] for case in _slower(race)]
    is_null = kind == "null"
    return Replay(
        trace.name,
        kind,
        trace.trial_noise(),
        len(grid.rounds),
        grid_world.spent_s,
        race_world.spent_s,
        not _slower(grid) if is_null else truth[whole] >= best - margin,
        not slower if is_null else truth[chosen] >= best - margin,
        chosen == whole or abs(truth[chosen] - truth[whole]) <= margin,
        bool(slower) if is_null else any(value > truth[chosen] + margin for value in slower),
        bool(race.ranking().contenders),
        len(race.results()),
        len(grid.results()),
    )


def _slower(racer: Racer) -> list[str]:
    return [case for case, verdict in racer.verdicts().items() if verdict.verdict == "slower"]


def run_sweep(trace: Trace, cells: list[Cell], settings: RaceSettings, seed: int) -> tuple[Racer, World]:
    """To its end, on a machine with luck of its own."""
    names = [cell.name for cell in cells]
    values = {name: dict(part.split("=") for part in name.split()) for name in names}
    racer, world = Racer(names, names[0], settings, seed, values), World(trace, cells, seed)
    while (assignment := racer.next()) is not None:
        racer.observe(world.run(assignment))
    return racer, world


def replay_all(replays: int, seed: int, noise: float | None = NOISE, repeats: int | None = None) -> Iterator[Replay]:
    """Every trace and kind in turn; `noise`: of a trial, None: as recorded; `repeats`: of the grid, None: what the noise asks for."""
    traces = [trace if noise is None else trace.scaled(noise) for trace in load_traces()]
    for index in range(replays):
        for trace in traces:
            for kind in KINDS:
                yield replay(trace, kind, seed + index, replace(trace.settings(), repeats=repeats))


def summarize(replays: list[Replay]) -> list[dict[str, Any]]:
    """One row per trace and kind, and one per kind: what is right in a null sweep is another thing, so nothing sums all."""
    keys = list(dict.fromkeys((r.trace, r.kind) for r in replays))
    rows = [_row(t, k, [r for r in replays if (r.trace, r.kind) == (t, k)]) for t, k in keys]
    kinds = dict.fromkeys(r.kind for r in replays)
    return [*rows, *(_row("all", kind, [r for r in replays if r.kind == kind]) for kind in kinds)]


def _row(trace: str, kind: str, replays: list[Replay]) -> dict[str, Any]:
    ratios = sorted(r.ratio for r in replays)
    right = sum(r.race_right for r in replays)
    low, high = share_interval(right, len(replays))
    return {
        "trace": trace,
        "kind": kind,
        "replays": len(replays),
        "noise": round(statistics.fmean(r.noise for r in replays), 4),
        "grid_repeats": statistics.median(r.grid_repeats for r in replays),
        "cost": round(sum(r.race_device_s for r in replays) / sum(r.grid_device_s for r in replays), 4),
        "cost_median": round(statistics.median(ratios), 4),
        "cost_p90": round(ratios[math.ceil(0.9 * len(ratios)) - 1], 4),
        "right": right,
        "right_share": round(right / len(replays), 4),
        "right_low": round(low, 4),
        "right_high": round(high, 4),
        "grid_right_share": round(sum(r.grid_right for r in replays) / len(replays), 4),
        "agreed_share": round(sum(r.is_agreed for r in replays) / len(replays), 4),
        "wrong_claim_share": round(sum(r.is_claim_wrong for r in replays) / len(replays), 4),
        "undecided_share": round(sum(r.is_undecided for r in replays) / len(replays), 4),
        "race_trials": statistics.median(r.race_trials for r in replays),
        "grid_trials": statistics.median(r.grid_trials for r in replays),
    }


def share_interval(successes: int, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's: it holds the true share at least so often."""
    from scipy.special import betaincinv

    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else float(betaincinv(successes, count - successes + 1, tail))
    high = 1.0 if successes == count else float(betaincinv(successes + 1, count - successes, 1 - tail))
    return low, high
