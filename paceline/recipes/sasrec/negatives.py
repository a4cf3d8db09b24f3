"""Sampled negatives that depend on their position's key and on nothing else: not on the batch, the rank, the order or the device.

Keys of samples are hashed from (seed, epoch, sample id) where the batch is made, those of positions from them.

    keys_BL = position_keys(keys_B, length)
    draw_uniform(keys_BL.flatten(), 256, num_items, answers_T)      (T, 256) items of 1 … num_items, never the answer

Shapes: B samples, L positions, T positions in a row, N items.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.engine.draws import mix, uniform


def position_keys(keys_B: Tensor, length: int) -> Tensor:
    """(B, L): a key for each position of each sample."""
    return _split_keys(keys_B, length)


def draw_uniform(keys_T: Tensor, count: int, num_items: int, answers_T: Tensor) -> Tensor:
    """(T, count) items, all alike but for the position's answer, which is never drawn."""
    # The bias is below num_items / 2**53, and no number below 1 is rounded up to num_items - 1 by the product.
    drawn = uniform(_split_keys(keys_T, count)).mul_(num_items - 1).long().add_(1)
    # Numbers from the answer on move up by one, so that it is never drawn.
    return drawn.add_(drawn >= answers_T[:, None])


def draw_by(keys_T: Tensor, count: int, cumulative_N: Tensor) -> Tensor:
    """(T, count) items as often as their frequencies say, of which `cumulative_N` (float64) is the running sum; never one of frequency 0."""
    numbers = uniform(_split_keys(keys_T, count)).mul_(cumulative_N[-1])
    return torch.searchsorted(cumulative_N, numbers, right=True).add_(1)


def _split_keys(keys: Tensor, count: int) -> Tensor:
    """`count` keys from each one; the first few do not depend on how many there are."""
    return mix(keys[:, None] ^ mix(torch.arange(1, count + 1, device=keys.device)))
