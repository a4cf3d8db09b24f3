"""The pieces of work of chosen blocks, by Triton's interpreter, against lists of Python. test_kernels.py runs these tests in a process of their own."""

from __future__ import annotations

import pytest
import torch

from paceline.recipes.nsa.kernels import chosen_work
from paceline.recipes.nsa.kernels.chosen_work import plan_work
from tests.recipes.nsa.attentions import make_positions
from tests.recipes.nsa.kernels.work import draw_choice, list_pieces, read_pieces


@pytest.mark.parametrize(
    ("documents", "groups", "block", "most", "size"),
    [
        ([(150,)], 2, 16, 4, 150),
        ([(150,), (37, 1, 112)], 1, 16, 3, 150),
        # Blocks of many documents begin within one block's length.
        ([(3, 1, 1, 30, 2, 50, 1, 4)], 2, 16, 5, 92),
        ([tuple([1] * 40)], 1, 32, 2, 40),
        # Some queries at a time, which do not begin with a word.
        ([(100, 45), (7, 9, 129)], 2, 64, 2, 41),
        ([(33, 40, 27)], 1, 32, 1, 50),
        ([(300,)], 1, 128, 3, 300),
    ],
)
def test_each_block_has_its_queries_in_their_order_cut_into_pieces(
    documents: list[tuple[int, ...]], groups: int, block: int, most: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chosen_work, "PIECE", 8)
    positions = make_positions(*documents)
    index = torch.arange(positions.shape[1])
    owner = (index - positions % block).int()
    chosen = draw_choice(positions, groups, block, most, seed=len(index))
    for t0 in range(0, len(index), size):
        some = chosen[:, t0 : t0 + size].contiguous()
        work = plan_work(some, owner, t0, block, 0)
        assert read_pieces(work) == list_pieces(some, 8)
        assert int(work.count) >> 32 <= work.sums_room


def test_more_words_and_more_bins_than_are_summed_up_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen_work, "_AT_ONCE", 4)
    positions = make_positions((330,), (200, 130))
    chosen = draw_choice(positions, 2, 16, 4, seed=1)
    work = plan_work(chosen, (torch.arange(330) - positions % 16).int(), 0, 16, 0)
    assert read_pieces(work) == list_pieces(chosen, chosen_work.PIECE)


def test_nobody_chose_anything() -> None:
    chosen = torch.full((2, 20, 3), -1, dtype=torch.int32)
    work = plan_work(chosen, (torch.arange(20) // 16 * 16).int()[None], 0, 16, 0)
    assert int(work.count) == 0


def test_places_in_64_bits_where_addresses_need_them() -> None:
    positions = torch.arange(40)[None]
    chosen = draw_choice(positions, 1, 16, 2, seed=0)
    work = plan_work(chosen, (positions // 16 * 16).int(), 0, 16, 2**31)
    assert work.entry.dtype == torch.int64
    assert read_pieces(work) == list_pieces(chosen, chosen_work.PIECE)
