"""Sampled negatives that depend on (seed, epoch, sample, position) and on nothing else: not on the batch, the rank or the order.

A counter-based hash (splitmix64's finaliser) stands in for one random generator per sample, which would cost more than the model.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.recipes.sasrec.interactions import Ints

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1

Words = npt.NDArray[np.uint64]


def draw_negatives(
    seed: int, epoch: int, samples: Ints, positions: Ints, answers: Ints, count: int, num_items: int
) -> Ints:
    """(T, count) items, uniform over all but the answer; `samples`, `positions`, `answers` are (T,), items 1 … num_items."""
    state = _mix(np.array([seed & _MASK], np.uint64))
    for word in (np.array([epoch], np.int64), samples, positions):
        state = _mix(state ^ _mix(word.astype(np.uint64)))
    bits = _mix(state[:, None] ^ _mix(np.arange(count, dtype=np.uint64) + np.uint64(1)))
    # 53 bits: the bias is below num_items / 2**53. Numbers from the answer on move up by one, so that it is never drawn.
    drawn = ((bits >> np.uint64(11)) * (2.0**-53) * (num_items - 1)).astype(np.int64) + 1
    return drawn + (drawn >= answers[:, None])


def _mix(words: Words) -> Words:
    """splitmix64: each bit of the result depends on all bits of the argument; overflow wraps on purpose."""
    words = words + np.uint64(_GOLDEN)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
