"""Keys that everything drawn for a sample or a step follows from: (seed, epoch, sample) and nothing else, so any rank draws the same."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from paceline.recipes.sasrec.interactions import Ints
from paceline.recipes.sasrec.negatives import mix
from paceline.workload import Draw


def sample_keys(draw: Draw, ids: Ints) -> Tensor:
    """(B,) one key per sample."""
    state = torch.zeros(1, dtype=torch.int64)
    for word in (torch.tensor([draw.seed]), torch.tensor([draw.epoch]), torch.from_numpy(ids)):
        state = mix(state ^ mix(word))
    return state


def step_key(draw: Draw) -> Tensor:
    """(1,) the key of a whole step: that of its first sample, which no other step of the epoch has, once more mixed."""
    return mix(mix(sample_keys(draw, np.asarray(draw.batch[:1], np.int64))))
