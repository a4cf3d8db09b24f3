"""Random numbers that follow from (seed, epoch, sample) and nothing else: not from the batch, the rank, the order or the device.

    uniform(mix(sample_keys(draw, ids)))        (B,) a number in [0, 1) for each sample
    uniform_rows(sample_keys(draw, ids), 128)   (B, 128) for each sample a row of them, as a numpy array

A counter-based hash (splitmix64's finaliser) in int64, which wraps alike on CPU and CUDA, stands in for one generator per sample.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.workload import Draw

Ints = np.ndarray[Any, np.dtype[np.int64]]


def sample_keys(draw: Draw, ids: Ints) -> Tensor:
    """(B,) one key per sample."""
    return mix(_epoch_key(draw.seed, draw.epoch) ^ mix(torch.from_numpy(ids)))


def mix(words: Tensor) -> Tensor:
    """splitmix64: each bit of the result depends on all bits of the argument; overflow wraps on purpose."""
    words = words + _signed(0x9E3779B97F4A7C15)
    words = (words ^ _shift_right(words, 30)).mul_(_signed(0xBF58476D1CE4E5B9))
    words = (words ^ _shift_right(words, 27)).mul_(_signed(0x94D049BB133111EB))
    return words ^ _shift_right(words, 31)


def uniform(words: Tensor) -> Tensor:
    """Mixed words as float64 numbers in [0, 1), from their upper 53 bits."""
    return _shift_right(words, 11).double().mul_(2.0**-53)


def uniform_rows(keys_B: Tensor, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(B, count) on the host, by numpy: on some ten thousand numbers torch waits for its threads longer than it computes."""
    columns = mix(torch.arange(1, count + 1)).numpy().view(np.uint64)
    words = keys_B.numpy().view(np.uint64)[:, None] ^ columns
    words += np.uint64(0x9E3779B97F4A7C15)
    for bits, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words ^= words >> np.uint64(bits)
        words *= np.uint64(factor)
    words ^= words >> np.uint64(31)
    words >>= np.uint64(11)
    numbers: np.ndarray[Any, np.dtype[np.float64]] = words.astype(np.float64)
    numbers *= 2.0**-53
    return numbers


@functools.lru_cache(maxsize=8)
def _epoch_key(seed: int, epoch: int) -> Tensor:
    state = torch.zeros(1, dtype=torch.int64)
    for number in (seed, epoch):
        state = mix(state ^ mix(torch.tensor([number])))
    return state


def _shift_right(words: Tensor, bits: int) -> Tensor:
    """Zeros come in from the left: torch's own shift would repeat the sign."""
    return (words >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word
