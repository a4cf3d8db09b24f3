"""Slots of compressed blocks, per document."""

from __future__ import annotations

import pytest
import torch

from paceline.recipes.nsa.pattern import Pattern, build_frame
from tests.recipes.nsa.attentions import make_positions


def test_the_example_of_the_docstring() -> None:
    frame = build_frame(make_positions((7, 5)), Pattern(4, 2, 4, 3, 4), 8, torch.float32)
    assert frame.ends_BN.tolist() == [[3, 5, 10, 12, 12, 12]]
    assert (frame.first_BT[0, 11], frame.seen_BT[0, 11]) == (2, 3)
    assert frame.seen_BT.tolist() == [[0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 3, 3]]
    assert frame.first_BT.tolist() == [[0] * 7 + [2] * 5]


@pytest.mark.parametrize("documents", [(1,), (31,), (32,), (33, 500), (5, 1, 100, 64, 64, 300), (1,) * 40])
@pytest.mark.parametrize("pattern", [Pattern(), Pattern(16, 16, 32, 3, 8), Pattern(1, 1, 2, 3, 8)])
def test_slots_hold_exactly_the_blocks_that_lie_wholly_in_a_document(
    documents: tuple[int, ...], pattern: Pattern
) -> None:
    frame = build_frame(make_positions(documents), pattern, 8, torch.float32)
    expected, offset = [], 0
    for length in documents:
        count = pattern.num_compressed(length)
        expected += [offset + i * pattern.stride + pattern.block - 1 for i in range(count)]
        assert count == 0 or count * pattern.stride <= length
        offset += length
    ends = frame.ends_BN[0].tolist()
    assert ends == expected + [offset] * (len(ends) - len(expected))
    for t in range(offset):
        begin = int(frame.starts_BT[0, t])
        visible = [n for n, end in enumerate(expected) if end <= t and end - pattern.block + 1 >= begin]
        assert visible == list(range(int(frame.first_BT[0, t]), int(frame.seen_BT[0, t])))


@pytest.mark.parametrize(("block", "stride", "selection"), [(32, 16, 64), (16, 16, 16), (32, 8, 32), (32, 4, 48)])
def test_how_many_selection_blocks_a_compressed_one_may_lie_in(block: int, stride: int, selection: int) -> None:
    begins = range(0, 20 * block, stride)
    most = max((begin + block - 1) // selection - begin // selection + 1 for begin in begins)
    assert Pattern(block, stride, selection).reach == most
