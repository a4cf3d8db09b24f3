"""Random tokens, for throughput only: there is nothing to learn in them, and no loss of theirs means anything."""

from __future__ import annotations

import numpy as np

from paceline.recipes.nsa.data.packing import Packed
from paceline.recipes.nsa.data_config import Data

NOTE = "random tokens, for throughput only: losses mean nothing"


def draw_synthetic(data: Data, split: str, sample: int) -> Packed:
    """One document as long as the sample; the same in every epoch."""
    random = np.random.default_rng([data.seed, split == "validation", sample])
    tokens = (random.random(data.length + 1) * data.vocabulary).astype(np.int64)
    return Packed(tokens[:-1], tokens[1:], np.arange(data.length))
