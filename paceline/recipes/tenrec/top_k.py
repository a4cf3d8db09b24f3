"""The best items of a whole catalogue for each of some users: exact, in batches on the device, whatever the size of the catalogue.

    found = find_best(users_BD, items_ND, 100)           (B, 100) positions in the catalogue, best first
    rank_in_catalogue(users_BD, items_ND, answers_B)     (B,) how many are not worse than the answer

Of equal scores the lower position comes first, on every device and however the catalogue is cut: nothing depends on who sorts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

MAX_SCORES = 2**27
"""at once: 1 GiB of keys"""


def find_best(users_BD: Tensor, items_ND: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(B, k) positions and (B, k) scores in fp32, best first; fewer where the catalogue has fewer."""
    best_Bk = users_BD.new_empty((len(users_BD), 0), dtype=torch.int64)
    for first, scores_BN in _score(users_BD, items_ND):
        keys_BN = _order(scores_BN, first)
        best_Bk = torch.cat((best_Bk, keys_BN), 1)
        best_Bk = best_Bk.topk(min(k, best_Bk.shape[1]), 1).values
    return _position(best_Bk), _value(best_Bk)


def rank_in_catalogue(users_BD: Tensor, items_ND: Tensor, answers_B: Tensor) -> Tensor:
    """(B,) how many others of the whole catalogue are not below each answer, a position there: ties count against it."""
    ranks_B, own_B1 = torch.full_like(answers_B, -1), users_BD.new_full((len(users_BD), 1), math.nan)
    # The answer's score as its own part of the product has it: another product may round otherwise.
    for first, scores_BN in _score(users_BD, items_ND):
        is_here_B = (answers_B >= first) & (answers_B < first + scores_BN.shape[1])
        places_B = (answers_B - first).clamp(0, scores_BN.shape[1] - 1)
        own_B1 = torch.where(is_here_B[:, None], scores_BN.gather(1, places_B[:, None]), own_B1)
    for _, scores_BN in _score(users_BD, items_ND):
        ranks_B += (~(scores_BN < own_B1)).sum(1)
    return ranks_B


def _score(users_BD: Tensor, items_ND: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The scores of a part of the catalogue after the other, and where it begins; in fp32 whatever the autocast."""
    at_once = max(1, MAX_SCORES // max(1, len(users_BD)))
    for first in range(0, len(items_ND), at_once):
        with torch.autocast(users_BD.device.type, enabled=False):
            scores_BN = users_BD @ items_ND[first : first + at_once].T
        yield first, scores_BN


def _order(scores_BN: Tensor, first: int) -> Tensor:
    """Keys of int64 that compare as (score, then the lower position) do: the bits of a float sort like integers but for the sign."""
    bits_BN = (scores_BN.float().contiguous() + 0.0).view(torch.int32).long()  # + 0: minus zero is zero
    rising_BN = torch.where(bits_BN < 0, bits_BN ^ 0x7FFFFFFF, bits_BN)
    positions_N = torch.arange(first, first + scores_BN.shape[1], device=scores_BN.device)
    return (rising_BN << 32) | (0xFFFFFFFF - positions_N)


def _position(keys: Tensor) -> Tensor:
    return 0xFFFFFFFF - (keys & 0xFFFFFFFF)


def _value(keys: Tensor) -> Tensor:
    rising = keys >> 32
    return torch.where(rising < 0, rising ^ 0x7FFFFFFF, rising).int().view(torch.float32)
