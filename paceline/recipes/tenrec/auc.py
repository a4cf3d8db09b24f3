"""The area under the ROC curve, exact: the share of pairs of a positive and a negative in which the positive scores higher, ties half.

    auc(np.array([.1, .4, .4, .8]), np.array([0, 0, 1, 1]))        0.875: 3 pairs won, 1 tied, of 4

No list is sorted as a whole but the smaller side's. Of the larger side, pairs are counted part by part: each is small enough for a core's
cache, and the counts are whole numbers, so neither parts nor threads can be seen in the result. Besides its arguments this takes one copy
of the scores, and a few parts.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.cores import cpu_count

_PART = 1 << 20
"""scores of the larger side that are sorted at a time"""
_BLOCK = 1 << 12
"""sorted scores that are looked up at a time, in the stretch of the other side that they fall into"""

Floats = npt.NDArray[Any]


def auc(scores: Floats, labels: npt.NDArray[Any], threads: int | None = None) -> float:
    """From float32 or float64 scores, which may be infinite, and labels of 0 and 1.

    NaN where it is not defined: without positives, without negatives, or where a score is NaN and so has no place in the order. `threads`:
    None for as many as there are cores; sorting and searching let go of the interpreter's lock.
    """
    assert scores.shape == labels.shape == (scores.size,), f"{scores.shape} scores, {labels.shape} labels"
    is_positive = labels.astype(bool)
    positives, negatives = narrow(scores[is_positive]), narrow(scores[~is_positive])
    if positives.dtype != negatives.dtype:
        positives, negatives = positives.astype(np.float64), negatives.astype(np.float64)
    if not len(positives) or not len(negatives) or np.isnan(positives).any() or np.isnan(negatives).any():
        return float("nan")
    num_pairs = len(positives) * len(negatives)
    if len(positives) <= len(negatives):
        twice = count_above(positives, negatives, threads or cpu_count())
    else:
        twice = 2 * num_pairs - count_above(negatives, positives, threads or cpu_count())
    # Whole numbers up to here, of Python's own: the one rounding is this division.
    return twice / (2 * num_pairs)


def narrow(scores: Floats) -> Floats:
    """A copy in float32 where that loses nothing, as of float32 scores that were stored in more: it is sorted in half the time."""
    if scores.dtype == np.float64:
        with np.errstate(over="ignore"):
            small = scores.astype(np.float32)
        return small if np.array_equal(small, scores) else scores
    return scores.astype(np.float32)


def count_above(few: Floats, many: Floats, threads: int) -> int:
    """Twice the pairs in which one of the few is above one of the many, and once those in which they are equal; sorts both in place."""
    parts = [many[start : start + _PART] for start in range(0, len(many), _PART)]
    with ThreadPoolExecutor(threads) as pool:
        # The few first: they take longest, and meanwhile the others sort the parts.
        list(pool.map(lambda scores: scores.sort(), [few, *parts]))
        return sum(pool.map(count_part, itertools.repeat(few), parts))


def count_part(few: Floats, part: Floats) -> int:
    """As `count_above`, of sorted scores: whichever side is smaller is looked up in the other."""
    if len(few) <= len(part):
        below, not_above = look_up(few, part)
        return below + not_above
    below, not_above = look_up(part, few)
    return 2 * len(few) * len(part) - below - not_above


def look_up(keys: Floats, among: Floats) -> tuple[int, int]:
    """Summed over the keys: how many of the others are below, and how many are not above; both sorted."""
    below = not_above = 0
    for start in range(0, len(keys), _BLOCK):
        block = keys[start : start + _BLOCK]
        first = int(among.searchsorted(block[0], "left"))
        last = int(among.searchsorted(block[-1], "right"))
        stretch = among[first:last]
        places = stretch.searchsorted(block, "left")
        total = int(places.sum()) + first * len(block)
        below += total
        not_above += total
        if len(stretch):
            # A second search only for what has an equal: most scores have none.
            is_tied = stretch[np.minimum(places, len(stretch) - 1)] == block
            if is_tied.any():
                not_above += int((stretch.searchsorted(block[is_tied], "right") - places[is_tied]).sum())
    return below, not_above
