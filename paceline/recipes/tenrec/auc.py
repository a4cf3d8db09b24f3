"""The area under the ROC curve, exact: the share of pairs of a positive and a negative in which the positive scores higher, ties half.

    auc(np.array([.1, .4, .4, .8]), np.array([0, 0, 1, 1]))        0.875: 3 pairs won, 1 tied, of 4

Nothing is sorted as a whole. A score's bits, read as a whole number, have the order of the scores; their upper half says which bucket of
neighbours a score falls into. Pairs of different buckets are counted by the buckets' sizes alone; within a bucket numbers that lie close
are counted one by one, in a table as long as their range, and the others sorted. All counts are whole numbers, so neither buckets nor
threads can be seen in the result. Besides its arguments this takes one copy of the scores, and a few parts.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.cores import cpu_count

_PART = 1 << 20
"""scores that are put into buckets at a time"""
_FULL = 1 << 18
"""scores of a bucket, where they can be told apart by their upper halves; of few enough that a core's cache holds them"""
_MOST_BUCKETS = 256
_SAMPLE = 1 << 18
"""scores from which the buckets' bounds are guessed: they decide about speed alone"""
_SPARSE = 4
"""times as many numbers as scores: from there on a table of all numbers between costs more than sorting"""

Array = npt.NDArray[Any]
Side = tuple[Array, Array]
"""keys in the order of their buckets, and where each bucket begins, with the end of the last"""


def auc(scores: Array, labels: Array, threads: int | None = None) -> float:
    """From float32 or float64 scores, which may be infinite, and labels of 0 and 1.

    NaN where it is not defined: without positives, without negatives, or where a score is NaN and so has no place in the order. `threads`:
    None for as many as there are cores; numpy's sorting and counting let go of the interpreter's lock.
    """
    assert scores.shape == labels.shape == (scores.size,), f"{scores.shape} scores, {labels.shape} labels"
    assert scores.dtype.kind == "f", f"scores of {scores.dtype}"
    parts = [slice(start, start + _PART) for start in range(0, len(scores), _PART)]
    with ThreadPoolExecutor(threads or cpu_count()) as pool:
        if any(pool.map(lambda part: bool(np.isnan(scores[part]).any()), parts)):
            return float("nan")
        is_narrow = all(pool.map(lambda part: fits_float32(scores[part]), parts))
        buckets = place_buckets(order_keys(scores[:: 1 + len(scores) // _SAMPLE], is_narrow), len(scores))
        sides = list(pool.map(lambda part: buckets.fill(order_keys(scores[part], is_narrow), labels[part]), parts))
        positives, negatives = [one for one, _ in sides], [other for _, other in sides]
        num_positives, num_negatives = buckets.count(positives), buckets.count(negatives)
        num_pairs = int(num_positives.sum()) * int(num_negatives.sum())
        if not num_pairs:
            return float("nan")
        twice = 2 * int(num_positives @ (np.cumsum(num_negatives) - num_negatives))
        twice += sum(pool.map(lambda number: count_bucket(positives, negatives, number), range(buckets.num)))
    # Whole numbers up to here: the one rounding is this division.
    return twice / (2 * num_pairs)


def fits_float32(scores: Array) -> bool:
    """Whether float32 loses nothing, as of float32 scores that came in more."""
    if scores.dtype != np.float64:
        return True
    with np.errstate(over="ignore"):
        return np.array_equal(scores.astype(np.float32), scores)


def order_keys(scores: Array, is_narrow: bool) -> Array:
    """Whole numbers without sign that are ordered, and equal, as the scores are."""
    size = 32 if is_narrow else 64
    # Zero is added for -0: it is equal to 0, and its bits are not.
    bits = (scores.astype(f"float{size}") + np.zeros(1, f"float{size}")).view(f"int{size}")
    # Below zero larger bits are smaller numbers: all but the sign are turned round; then the sign, for all.
    bits ^= (bits >> (size - 1)) & (2 ** (size - 1) - 1)
    bits ^= -(2 ** (size - 1))
    return bits.view(f"uint{size}")


def upper_half(keys: Array) -> Array:
    """The upper 16 bits: for a table of 65,536 entries."""
    upper: Array = keys >> (keys.itemsize * 8 - 16)
    return upper.astype(np.uint16)


@dataclass(frozen=True)
class Buckets:
    """Which bucket a key falls into."""

    num: int
    table: Array
    """by the upper half of a key; never falling"""

    def fill(self, keys: Array, labels: Array) -> tuple[Side, Side]:
        """Positives and negatives of a part."""
        is_positive = labels.astype(bool)
        return self._fill_side(keys.compress(is_positive)), self._fill_side(keys.compress(~is_positive))

    def _fill_side(self, keys: Array) -> Side:
        buckets = self.table.take(upper_half(keys))
        # Stable: what numpy sorts bytes by their digits for, in one pass.
        order = np.argsort(buckets, kind="stable")
        ends = np.cumsum(np.bincount(buckets, minlength=self.num))
        return keys.take(order), np.concatenate([[0], ends])

    def count(self, sides: list[Side]) -> npt.NDArray[np.int64]:
        """How many keys of all parts are in each bucket."""
        counts: npt.NDArray[np.int64] = np.sum([np.diff(bounds) for _, bounds in sides], axis=0, dtype=np.int64)
        return counts


def place_buckets(sample: Array, num_scores: int) -> Buckets:
    """Buckets with about as many of the sample in each."""
    num = min(_MOST_BUCKETS, 1 + num_scores // _FULL)
    counts = np.bincount(upper_half(sample), minlength=1 << 16)
    before = np.cumsum(counts) - counts
    return Buckets(num, (before * num // (len(sample) + 1)).astype(np.uint8))


def count_bucket(positives: list[Side], negatives: list[Side], number: int) -> int:
    """As `count_pairs`, of one bucket of all parts."""

    def collect(sides: list[Side]) -> Array:
        return np.concatenate([keys[bounds[number] : bounds[number + 1]] for keys, bounds in sides])

    return count_pairs(collect(positives), collect(negatives))


def count_pairs(positives: Array, negatives: Array) -> int:
    """Twice the pairs in which the positive is above, and once those in which both are equal; sorts in place."""
    if not len(positives) or not len(negatives):
        return 0
    low = min(positives.min(), negatives.min())
    span = int(max(positives.max(), negatives.max())) - int(low) + 1
    if span <= _SPARSE * (len(positives) + len(negatives)):
        higher, lower = (tally(keys, low, span) for keys in (positives, negatives))
        return int(higher @ (2 * np.cumsum(lower) - lower))
    positives.sort()
    negatives.sort()
    if len(positives) <= len(negatives):
        return look_up(positives, negatives)
    return 2 * len(positives) * len(negatives) - look_up(negatives, positives)


def tally(keys: Array, low: Any, span: int) -> npt.NDArray[np.int64]:
    """How often each number from the lowest on occurs; part by part, because numpy counts what it has first made twice as wide."""
    counts = np.zeros(span, np.int64)
    for start in range(0, len(keys), _PART):
        counts += np.bincount((keys[start : start + _PART] - low).astype(np.int64), minlength=span)
    return counts


def look_up(few: Array, many: Array) -> int:
    """As `count_pairs`, with the few for positives; both sorted."""
    return int(many.searchsorted(few, "left").sum()) + int(many.searchsorted(few, "right").sum())
