"""Keys that everything drawn for a sample or a step follows from: (seed, epoch, sample) and nothing else, so any rank draws the same."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from paceline.engine.draws import mix, sample_keys, uniform
from paceline.recipes.sasrec.interactions import Ints
from paceline.recipes.sasrec.windows import Windows
from paceline.workload import Draw


def draw_firsts(windows: Windows, draw: Draw, ids: Ints) -> Ints:
    """Where the first input of each sample's window lies among all events."""
    if not windows.is_random:
        return windows.firsts(ids, None)
    return windows.firsts(ids, uniform(mix(sample_keys(draw, ids))).numpy())


def step_key(draw: Draw) -> Tensor:
    """(1,) the key of a whole step: that of its first sample, which no other step of the epoch has, once more mixed."""
    return mix(mix(sample_keys(draw, np.asarray(draw.batch[:1], np.int64))))
