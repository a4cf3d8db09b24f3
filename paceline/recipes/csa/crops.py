"""Which part of an utterance a sample is, and which of its words are spoken there: from (seed, epoch, sample) alone.

    crop = draw_crop(samples=160_000, bounds=(16_000, 48_000), length_at=0.5, start_at=0.2)     Crop(25600, 32000, 160000)
    words_within("THE QUICK BROWN FOX", crop)                                                   "THE QUICK"

Nothing says when a word is spoken, so an utterance's time is shared out among its words by their letters, and one more for the pause that
follows each. A word belongs to a crop if the middle of its letters does; if none does, the one nearest to the crop's middle does, for no
speech goes without a text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.engine.draws import mix, sample_keys, uniform
from paceline.workload import Draw

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Audio = np.ndarray[Any, np.dtype[np.float32]]
Bounds = tuple[int, int]
"""samples of the shortest crop, and of the longest"""


@dataclass(frozen=True)
class Crop:
    """So many samples of an utterance, from one on."""

    start: int
    length: int
    total: int
    """samples of the utterance"""


Choose = Callable[[int], Crop]
"""from the samples of an utterance to the part of it that is wanted"""


def draw_places(draw: Draw, ids: Ints) -> tuple[Floats, Floats]:
    """For each sample two numbers in [0, 1): how long between the bounds, and how far into the utterance."""
    keys = mix(sample_keys(draw, ids))
    return uniform(keys).numpy(), uniform(mix(keys)).numpy()


def crop_lengths(samples: Ints, bounds: Bounds | None, length_at: Floats) -> Ints:
    """How long each crop is, all lengths between the bounds alike; an utterance that is shorter is used whole."""
    if bounds is None:
        return samples
    shortest, longest = (np.minimum(samples, bound) for bound in bounds)
    lengths: Ints = shortest + (length_at * (longest - shortest + 1)).astype(np.int64)
    return lengths


def draw_crop(samples: int, bounds: Bounds | None, length_at: float, start_at: float) -> Crop:
    length = int(crop_lengths(np.array([samples]), bounds, np.array([length_at]))[0])
    return Crop(int(start_at * (samples - length + 1)), length, samples)


def middle_crop(samples: int, bounds: Bounds | None) -> Crop:
    """What is evaluated: as much as the longest crop has, from the middle; the same in every evaluation."""
    length = samples if bounds is None else min(samples, bounds[1])
    return Crop((samples - length) // 2, length, samples)


def words_within(transcript: str, crop: Crop) -> str:
    """The words spoken in the crop, at least one."""
    words = transcript.split()
    if crop.length == crop.total:
        return " ".join(words)
    letters = np.array([len(word) for word in words])
    ends = np.cumsum(letters + 1)
    middles = (ends - 1 - letters / 2) / ends[-1] * crop.total
    is_within = (crop.start <= middles) & (middles < crop.start + crop.length)
    if not is_within.any():
        is_within[np.abs(middles - (crop.start + crop.length / 2)).argmin()] = True
    return " ".join(word for word, within in zip(words, is_within, strict=True) if within)
