"""The quality guard: whether a case trains as well as the baseline, compared where both have seen the same number of samples.

Losses of windows are noisy, so stretches of them are compared, not points. A case is worse if its loss over a stretch is above the
baseline's by more than the tolerance: in the last stretch that both reached (the trend that counts), or, from the first third
on, in any one by three tolerances (it broke away, whatever became of it). A larger batch sees more samples than the baseline
does; there its loss is held against the baseline's last stretch, below which it should be by then. What is not a number is worse
at once, and so is a loss that is told at first and then no more: many scripts' lines cannot show that it is not a number.
"""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

Curve = Sequence[tuple[int, float]]
_STRETCHES = 6
_BREAKS_AWAY = 3.0
_SILENT = 3
"""so many times the longest gap between two losses, and there should have been another one"""


@dataclass(frozen=True)
class Quality:
    """How a case trains beside the baseline."""

    is_worse: bool
    excess: float | None
    """relative, in the last stretch; None: nothing to compare"""
    samples: int
    """up to which both were compared"""
    evidence: str


def check_soundness(curve: Curve, samples: int) -> str | None:
    """What is wrong with a trial's loss, whatever the baseline's is; `samples`: seen by its end, 0 if not known."""
    broken = next((at for at, loss in curve if not math.isfinite(loss)), None)
    if broken is not None:
        return f"its loss is not a number from {broken:,} samples on"
    if not curve:
        return None
    places = [0, *(at for at, _ in curve)]
    longest = max(after - before for before, after in itertools.pairwise(places))
    if samples - places[-1] > _SILENT * longest:
        return f"its loss was told up to {places[-1]:,} samples, and no more until {samples:,}"
    return None


def compare_losses(case: Curve, baseline: Curve, tolerance: float) -> Quality:
    """One curve against another, at matched samples."""
    broken = check_soundness(case, samples=0)
    if broken is not None:
        return Quality(True, None, case[-1][0], broken)
    reference = [(samples, loss) for samples, loss in baseline if math.isfinite(loss)]
    matched = [(s, loss) for s, loss in case if reference and reference[0][0] <= s]
    if not matched:
        return Quality(False, None, 0, "no loss at the same number of samples as the baseline's")
    end = reference[-1][0]
    ending = statistics.fmean(loss for _, loss in reference[-max(1, len(reference) // _STRETCHES) :])
    excess = [(s, loss, value_at(reference, s) if s <= end else ending) for s, loss in matched]
    worst = (0.0, 0)
    last = 0.0
    size = max(1, math.ceil(len(excess) / _STRETCHES))
    for start in range(0, len(excess), size):
        # The rest at the end is too short to be judged alone.
        part = excess[-size:] if start + size > len(excess) else excess[start : start + size]
        ours, theirs = statistics.fmean(p[1] for p in part), statistics.fmean(p[2] for p in part)
        last = (ours - theirs) / max(abs(theirs), 1e-12)
        if part[-1][0] > excess[-1][0] / 3:
            worst = max(worst, (last, part[-1][0]))
    samples = excess[-1][0]
    if last > tolerance:
        return Quality(True, last, samples, f"loss {last:+.1%} against the baseline at {samples:,} samples")
    if worst[0] > _BREAKS_AWAY * tolerance:
        return Quality(True, last, samples, f"its loss broke away by {worst[0]:+.1%} before {worst[1]:,} samples")
    return Quality(False, last, samples, f"loss {last:+.1%} against the baseline at {samples:,} samples")


def value_at(curve: Curve, samples: int) -> float:
    """Between two windows, in proportion."""
    right = bisect.bisect_left(curve, samples, key=lambda point: point[0])
    if right == 0 or curve[right][0] == samples:
        return curve[right][1]
    (before, low), (after, high) = curve[right - 1], curve[right]
    return low + (high - low) * (samples - before) / (after - before)


def mean_curve(curves: Sequence[Curve]) -> list[tuple[int, float]]:
    """The mean of several trials of one case, where at least one has a value; each at the samples of the longest."""
    longest = max(curves, key=lambda curve: curve[-1][0] if curve else 0, default=())
    known = [dict(curve) for curve in curves]
    found = []
    for samples, _ in longest:
        there = []
        for curve, values in zip(curves, known, strict=True):
            if samples in values:
                there.append(values[samples])
            elif curve and curve[0][0] <= samples <= curve[-1][0]:
                there.append(value_at(curve, samples))
        found.append((samples, sum(there) / len(there)))
    return found
