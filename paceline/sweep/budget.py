"""What a race may cost: what the full grid would, by the ordinary analysis, and what single trials do, in device-seconds.

The grid's repeats are what somebody needs who compares trials within rounds, as they come: neither the windows nor the times of trials,
by which this package sees more (stalls.py, drift.py), make the grid look cheaper.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from paceline.sweep.comparison import PRIOR_NOISE, compare
from paceline.sweep.evidence import ENDED, RaceSettings, TrialResult
from paceline.sweep.observation import Observation
from paceline.sweep.power import repeats_for

_WELL_KNOWN = 10
"""degrees of freedom from which on a noise is taken as it was found"""
_GENEROUS = 0.7
"""with this confidence the noise is not larger than what repeats are counted by"""
_PRESUMED_FREEDOM = 3.0
"""for how many degrees of freedom a usual noise counts, when a race guesses the grid's"""
_DEAREST = 3.0
"""how much more than the median a case's steps may be thought to cost"""


def repeats_by_noise(
    ordinary: Sequence[Observation], rounds: Sequence[int], num_cases: int, settings: RaceSettings
) -> int:
    """How many rounds of all cases the noise asks for; `rounds`: how many trials each round so far has."""
    are_paces = settings.objective == "throughput"
    if settings.racing:
        noise = _grid_noise(ordinary, rounds, num_cases, are_paces=are_paces)
    else:
        comparison = compare(ordinary, are_paces=are_paces)
        assert comparison is not None
        noise = comparison.noise if comparison.freedom >= _WELL_KNOWN else comparison.noise_below(_GENEROUS)
    wanted = repeats_for(settings.effect, noise, settings.power, settings.confidence)
    return min(wanted, settings.max_rounds)


def _grid_noise(ordinary: Sequence[Observation], rounds: Sequence[int], num_cases: int, *, are_paces: bool) -> float:
    """What trials would scatter by in rounds of all cases: the machine drifts more during those than in a race's short ones."""
    spans, count, ahead = list[int](), 0, 0
    for size in rounds:
        spans.append(ahead)
        count += size
        if count >= num_cases:
            ahead, count = ahead + 1, 0
    regrouped = [replace(o, round=spans[o.round - 1]) for o in ordinary]
    coarse = compare(regrouped, are_paces=are_paces)
    if coarse is not None and not coarse.is_pure:
        # Short trials beside whole ones: what they differ by is at least the noise.
        coarse = compare([replace(o, doubt=0.0) for o in regrouped], are_paces=are_paces)
    assert coarse is not None
    # Few trials know it badly; taken too small, a race would end too soon.
    squares = coarse.freedom * coarse.noise**2 + _PRESUMED_FREEDOM * PRIOR_NOISE**2
    known = replace(
        coarse,
        noise=math.sqrt(squares / (coarse.freedom + _PRESUMED_FREEDOM)),
        freedom=coarse.freedom + _PRESUMED_FREEDOM,
    )
    return known.noise_below(_GENEROUS) if coarse.is_pure else known.noise


class Costs:
    """What trials cost here, in device-seconds: a start, and a step."""

    def __init__(self, results: Sequence[TrialResult], settings: RaceSettings) -> None:
        starts: list[float] = []
        steps: dict[str, list[float]] = {}
        for result in results:
            if result.status in ENDED and result.device_s > 0 and result.windows:
                count = result.steps or len(result.windows) * settings.window
                start = min(result.startup_s * result.devices, result.device_s)
                starts.append(start)
                steps.setdefault(result.case, []).append((result.device_s - start) / count)
        # Medians, and a bound: one trial that stalled would make the whole grid look dear, and the race's budget large.
        self._start = statistics.median(starts) if starts else 0.0
        self._step = statistics.median(cost for own in steps.values() for cost in own) if steps else 0.0
        self._steps = {c: min(statistics.median_low(own), _DEAREST * self._step) for c, own in steps.items()}

    def trial(self, case: str, steps: int) -> float:
        return self._start + self._steps.get(case, self._step) * steps
