"""The best items of a whole catalogue for each of some users: exact, in batches on the device, whatever the size of the catalogue.

    found = find_best(users_BD, items_ND, 100)           (B, 100) positions in the catalogue, best first
    rank_in_catalogue(users_BD, items_ND, answers_B)     (B,) how many are better than the answer

Of equal scores the lower position comes first, on every device and however the catalogue is cut: nothing depends on who sorts.
"""

from __future__ import annotations

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
    """(B,) the place of each answer, a position in the catalogue, among all of it: 0 is the best."""
    ranks_B = torch.zeros_like(answers_B)
    keys_B1 = torch.zeros_like(answers_B)[:, None]
    parts = list(_bounds(len(users_BD), len(items_ND)))
    # The answer's score as its part of the product has it: another product may round otherwise.
    for first, end in parts:
        is_here_B1 = ((answers_B >= first) & (answers_B < end))[:, None]
        keys_BN = _order(users_BD @ items_ND[first:end].T, first)
        own_B1 = keys_BN.gather(1, (answers_B[:, None] - first).clamp(0, end - first - 1))
        keys_B1 = torch.where(is_here_B1, own_B1, keys_B1)
    for first, scores_BN in _score(users_BD, items_ND):
        ranks_B += (_order(scores_BN, first) > keys_B1).sum(1)
    return ranks_B


def _score(users_BD: Tensor, items_ND: Tensor) -> Iterator[tuple[int, Tensor]]:
    for first, end in _bounds(len(users_BD), len(items_ND)):
        yield first, users_BD @ items_ND[first:end].T


def _bounds(rows: int, num_items: int) -> Iterator[tuple[int, int]]:
    at_once = max(1, MAX_SCORES // max(1, rows))
    return ((first, min(first + at_once, num_items)) for first in range(0, num_items, at_once))


def _order(scores_BN: Tensor, first: int) -> Tensor:
    """Keys of int64 that compare as (score, then the lower position) do: the bits of a float sort like integers but for the sign."""
    bits_BN = scores_BN.float().contiguous().view(torch.int32).long()
    rising_BN = torch.where(bits_BN < 0, bits_BN ^ 0x7FFFFFFF, bits_BN)
    positions_N = torch.arange(first, first + scores_BN.shape[1], device=scores_BN.device)
    return (rising_BN << 32) | (0xFFFFFFFF - positions_N)


def _position(keys: Tensor) -> Tensor:
    return 0xFFFFFFFF - (keys & 0xFFFFFFFF)


def _value(keys: Tensor) -> Tensor:
    rising = keys >> 32
    return torch.where(rising < 0, rising ^ 0x7FFFFFFF, rising).int().view(torch.float32)
