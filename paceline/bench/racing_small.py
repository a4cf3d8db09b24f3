"""Replays small sweeps, 8 cells and 6 repeats under rough noise, full grid against race: a quarter of such a grid is a trial or two of each.

Under such noise not even the grid tells close cells apart, so what is right is said in its terms. A choice is right if it is the best
cell or within the margin of it; or if it is behind by no more than a standard error of the grid's own differences, and the sweep
names the best cell among those it did not tell apart from its choice. "Not decided" alone is never right. How far choices are
behind on average stands beside it. Kinds:
- front: four cells within 20 %, the best of them first by at least 2 %, four others 25 to 45 % behind, as a real sweep had them;
- spread: as the recorded cases scatter; null: no cell differs from another, right if none was called slower.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paceline.bench.racing import run_sweep, share_interval
from paceline.bench.racing_world import WIDEST, Cell, Trace, load_traces
from paceline.sweep.evidence import RaceSettings
from paceline.sweep.racer import Racer

CELLS, REPEATS = 8, 6
NOISES = (0.06, 0.1, 0.17)
KINDS = ("front", "spread", "null")


@dataclass(frozen=True)
class SmallReplay:
    """One small sweep, both ways."""

    trace: str
    kind: str
    noise: float
    grid_device_s: float
    race_device_s: float
    race_trials: int
    grid_behind: float
    race_behind: float
    """how far the chosen cell truly is behind the best one, as a log"""
    grid_right: bool
    race_right: bool
    is_claim_wrong: bool
    """a case was called slower that is as good, or a winner was named that is behind by more than the margin"""
    is_decided: bool
    grid_rivals: int
    num_rivals: int
    """that the race says it did not tell apart from its choice"""

    @property
    def ratio(self) -> float:
        return self.race_device_s / self.grid_device_s


def build_small(trace: Trace, kind: str, rng: np.random.Generator) -> list[Cell]:
    """8 cells on two axes; the first is the baseline."""
    names = [f"a={i // 2} b={i % 2}" for i in range(CELLS)]
    center = math.log(trace.samples_per_s)
    if kind == "null":
        return [Cell(name, center) for name in names]
    if kind == "front":
        # Whole values of the first axis are behind, as micro-batches that are too small were.
        slow = set(rng.choice(4, 2, replace=False).tolist())
        front = [0.0, *(-rng.uniform(0.02, 0.2, 3)).tolist()]
        rng.shuffle(front)
        rates = [-rng.uniform(0.25, 0.45) if i // 2 in slow else front.pop() for i in range(CELLS)]
    else:
        spread = min(trace.case_sd, WIDEST)
        parts = [rng.normal(0, spread / math.sqrt(2), size) for size in (4, 2)]
        own = rng.normal(0, spread / 5, CELLS)
        rates = [float(parts[0][i // 2] + parts[1][i % 2] + own[i]) for i in range(CELLS)]
    return [Cell(name, center + rate) for name, rate in zip(names, rates, strict=True)]


def replay_small(trace: Trace, kind: str, seed: int, settings: RaceSettings | None = None) -> SmallReplay:
    cells = build_small(trace, kind, np.random.default_rng([seed, 2]))
    settings = settings or replace(trace.settings(), repeats=REPEATS)
    grid, grid_world = run_sweep(trace, cells, replace(settings, racing=False), seed * 2)
    race, race_world = run_sweep(trace, cells, settings, seed * 2 + 1)
    truth = {cell.name: cell.truth(trace.steps) for cell in cells}
    noise, best = trace.trial_noise(), max(truth.values())
    resolution = noise * math.sqrt(2 / (settings.repeats or REPEATS))
    chosen = [racer.ranking().leader or cells[0].name for racer in (grid, race)]
    return SmallReplay(
        trace.name,
        kind,
        round(noise, 4),
        grid_world.spent_s,
        race_world.spent_s,
        len(race.results()),
        best - truth[chosen[0]],
        best - truth[chosen[1]],
        _judge(grid, truth, resolution, settings),
        _judge(race, truth, resolution, settings),
        _claims_wrong(race, truth, settings),
        not race.ranking().rivals,
        len(grid.ranking().rivals),
        len(race.ranking().rivals),
    )


def _judge(racer: Racer, truth: dict[str, float], resolution: float, settings: RaceSettings) -> bool:
    ranking, margin, best = racer.ranking(), math.log1p(settings.margin), max(truth.values())
    if len(set(truth.values())) == 1:
        return not _claims_wrong(racer, truth, settings)
    behind = best - truth[ranking.leader or next(iter(truth))]
    named = any(truth[case] >= best - margin for case in ranking.rivals)
    return behind <= margin or (named and behind <= resolution)


def _claims_wrong(racer: Racer, truth: dict[str, float], settings: RaceSettings) -> bool:
    ranking, margin = racer.ranking(), math.log1p(settings.margin)
    level = truth[ranking.leader or next(iter(truth))]
    slower = [truth[case] for case, verdict in ranking.verdicts.items() if verdict.verdict == "slower"]
    is_won = any(verdict.verdict == "winner" for verdict in ranking.verdicts.values())
    is_beaten = max(truth.values()) > level + margin
    # Where no cell differs, every one that was called slower was called so wrongly.
    return (
        (bool(slower) and len(set(truth.values())) == 1)
        or max(slower, default=-math.inf) > level + margin
        or (is_won and is_beaten)
    )


def replay_all_small(replays: int, seed: int, noises: tuple[float, ...] = NOISES) -> Iterator[SmallReplay]:
    """Every noise, trace and kind in turn."""
    for index in range(replays):
        for noise in noises:
            for trace in load_traces():
                for kind in KINDS:
                    yield replay_small(trace.scaled(noise), kind, seed + index)


def summarize_small(replays: list[SmallReplay]) -> list[dict[str, Any]]:
    """One row per noise and kind, and one per kind."""
    keys = list(dict.fromkeys((r.noise, r.kind) for r in replays))
    rows = [_row(f"{n:.0%}", k, [r for r in replays if (r.noise, r.kind) == (n, k)]) for n, k in keys]
    kinds = dict.fromkeys(r.kind for r in replays)
    return [*rows, *(_row("all", kind, [r for r in replays if r.kind == kind]) for kind in kinds)]


def _row(noise: str, kind: str, replays: list[SmallReplay]) -> dict[str, Any]:
    count, right = len(replays), sum(r.race_right for r in replays)
    low, high = share_interval(right, count)
    ratios = sorted(r.ratio for r in replays)
    return {
        "noise": noise,
        "kind": kind,
        "replays": count,
        "cost": round(sum(r.race_device_s for r in replays) / sum(r.grid_device_s for r in replays), 4),
        "cost_median": round(statistics.median(ratios), 4),
        "cost_p90": round(ratios[math.ceil(0.9 * count) - 1], 4),
        "right": right,
        "right_share": round(right / count, 4),
        "right_low": round(low, 4),
        "right_high": round(high, 4),
        "grid_right_share": round(sum(r.grid_right for r in replays) / count, 4),
        "race_behind": round(statistics.fmean(r.race_behind for r in replays), 4),
        "grid_behind": round(statistics.fmean(r.grid_behind for r in replays), 4),
        "wrong_claim_share": round(sum(r.is_claim_wrong for r in replays) / count, 4),
        "decided_share": round(sum(r.is_decided for r in replays) / count, 4),
        "grid_rivals": round(statistics.fmean(r.grid_rivals for r in replays), 2),
        "rivals": round(statistics.fmean(r.num_rivals for r in replays), 2),
        "race_trials": statistics.median(r.race_trials for r in replays),
    }
