"""Trials as evidence: from what a trial measured to the numbers that are compared.

Twice: as one would compare them who looks at results alone (`ordinary`: by that, repeats are counted), and as they are compared here,
without windows that stalled (stalls.py) and with the time at which they ran (drift.py).
    observe_trials(results, settings, scale, lengths={1: 60, 2: 300}).sharp     -> [Observation("bucket_mb=25", 1, 6.94, doubt=0.0009), …]
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.sweep.evidence import RaceSettings, TrialResult
from paceline.sweep.scale import Scale
from paceline.sweep.stalls import find_stalls

_PRESUMED, _PRESUMED_FREEDOM = 0.03, 3
"""how much short trials may mislead, before whole ones have been seen, and for how many of them that counts"""


@dataclass(frozen=True)
class Observation:
    """One trial: the logarithm of what was measured, larger is better."""

    case: str
    round: int
    value: float
    doubt: float = 0.0
    """variance besides a trial's own noise: a short trial may differ from a whole one"""
    time_s: float | None = None
    """when it ran; None: neighbours in time are those of its round"""


@dataclass(frozen=True)
class Observations:
    """The same trials, in the same order."""

    sharp: tuple[Observation, ...]
    ordinary: tuple[Observation, ...]


def value_of(result: TrialResult, settings: RaceSettings) -> float | None:
    """What the objective asks for; None: it has none. A metric may be zero or negative, a pace may not."""
    is_pace = settings.objective == "throughput"
    value = result.samples_per_s if is_pace else result.metric
    return value if value is not None and math.isfinite(value) and (value > 0 or not is_pace) else None


def observe_trials(
    results: Sequence[TrialResult], settings: RaceSettings, scale: Scale, lengths: Mapping[int, int]
) -> Observations:
    """Of trials that have a value; `lengths`: counted steps of each round, where they differ."""
    is_pace = settings.objective == "throughput"
    shortest = min(lengths.values(), default=settings.steps)
    stalls: Sequence[frozenset[int]] = find_stalls(results) if is_pace else [frozenset()] * len(results)
    doubt = _settling(results, stalls, settings, shortest)
    sharp, ordinary = list[Observation](), list[Observation]()
    for result, stalled in zip(results, stalls, strict=True):
        steps = lengths.get(result.round, settings.steps) if is_pace else settings.steps
        is_short = steps < settings.steps
        for found, left_out, time_s in ((sharp, stalled, result.time_s), (ordinary, frozenset[int](), None)):
            value = _value_over(result, settings, steps if is_short else None, left_out)
            place = scale.place(value)
            found.append(Observation(result.case, result.round, place, doubt if is_short else 0.0, time_s))
    return Observations(tuple(sharp), tuple(ordinary))


def _value_over(result: TrialResult, settings: RaceSettings, steps: int | None, stalled: frozenset[int]) -> float:
    """A longer trial than its round counts as far as the others of the round went; what stalled by accident does not count."""
    value = value_of(result, settings)
    assert value is not None
    last = len(result.windows) if steps is None else max(steps // settings.window, 1)
    matched = result.windows[:last]
    if min(matched, default=0.0) <= 0:
        return value  # a counter that moves in leaps: its windows say nothing
    if len(matched) < len(result.windows):
        value = _harmonic_mean(matched)
    kept = [pace for index, pace in enumerate(matched) if index not in stalled]
    # A ratio: the pace over true wall time may know more than whole windows do.
    return value * _harmonic_mean(kept) / _harmonic_mean(matched) if kept and len(kept) < len(matched) else value


def _settling(
    results: Sequence[TrialResult], stalls: Sequence[frozenset[int]], settings: RaceSettings, steps: int
) -> float:
    """Variance, between cases, of how a whole trial differs from its own first steps: what a short trial cannot know.

    Queues that drain, caches that fill, clocks that fall: seen where trials were whole, presumed until then.
    """
    matched = max(steps // settings.window, 1)
    whole: dict[str, list[float]] = {}
    for result, stalled in zip(results, stalls, strict=True):
        is_whole = len(result.windows) > matched and len(result.windows) * settings.window >= settings.steps
        if is_whole and min(result.windows) > 0:
            kept = [(index, pace) for index, pace in enumerate(result.windows) if index not in stalled]
            first = [pace for index, pace in kept if index < matched]
            if first:
                ratio = _harmonic_mean([pace for _, pace in kept]) / _harmonic_mean(first)
                whole.setdefault(result.case, []).append(math.log(ratio))
    means = [statistics.fmean(values) for values in whole.values()]
    squares = statistics.variance(means) * (len(means) - 1) if len(means) > 1 else 0.0
    freedom = max(len(means) - 1, 0)
    return (squares + _PRESUMED_FREEDOM * _PRESUMED**2) / (freedom + _PRESUMED_FREEDOM)


def _harmonic_mean(rates: Sequence[float]) -> float:
    """Of rates over equally many samples: all samples over all time."""
    return len(rates) / sum(1 / rate for rate in rates)
