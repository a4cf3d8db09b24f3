"""The blocks that a decoded token chooses, by Triton's interpreter, against selection.py. test_kernels.py runs these tests in a process of their own."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.recipes.nsa.kernels.decode_kernels import choose_blocks as choose
from paceline.recipes.nsa.pattern import Pattern
from paceline.recipes.nsa.selection import choose_blocks

# Of lanes that nobody looks at.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@triton.jit
def choose_kernel(
    score_ptr, block_ptr, own, N: tl.constexpr, INITIAL: tl.constexpr, LOCAL: tl.constexpr, JP: tl.constexpr
):
    j = tl.arange(0, JP)
    is_chosen, place, _ = choose(tl.load(score_ptr + j), own, N, INITIAL, LOCAL, JP)
    tl.store(block_ptr + place, j, mask=is_chosen)


def run(score_J: Tensor, own: int, pattern: Pattern) -> Tensor:
    blocks = torch.full((pattern.selected,), -1, dtype=torch.int32)
    choose_kernel[(1,)](
        score_J, blocks, own, N=pattern.selected, INITIAL=pattern.initial, LOCAL=pattern.local, JP=len(score_J)
    )
    return blocks.long()


KINDS = {
    "random": lambda drawn: drawn,
    "equal": torch.zeros_like,
    "few": lambda drawn: (3 * drawn).floor(),
    "huge": lambda drawn: drawn**30 * 1e38,
    "tiny": lambda drawn: drawn**20 * 1e-38,
    "next to each other": lambda drawn: (drawn * 4).floor().int().add(0x3F000000).view(torch.float32),
    "infinite": lambda drawn: torch.where(drawn < 0.5, torch.inf, drawn),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_highest_and_of_equal_ones_the_first(kind: str) -> None:
    torch.manual_seed(0)
    for own, size, selected, local in [(0, 32, 4, 2), (2, 32, 4, 2), (3, 32, 4, 1), (31, 32, 7, 2), (50, 64, 16, 2)]:
        pattern = Pattern(block=1, stride=1, selection_block=1, selected=selected, local=local)
        score_J = KINDS[kind](torch.rand(size))
        # What is infinite does not come before the blocks in force.
        exact = score_J.clamp(max=torch.finfo(torch.float32).max)[None, None, None, : own + 1]
        expected = choose_blocks(exact, torch.tensor([[own]]), pattern)[0, 0, 0]
        assert torch.equal(run(score_J, own, pattern), expected), own


def test_what_is_not_a_number_leaves_no_place_empty() -> None:
    torch.manual_seed(1)
    for own in (3, 17, 31):
        pattern = Pattern(block=1, stride=1, selection_block=1, selected=7)
        score_J = torch.where(torch.rand(32) < 0.4, torch.nan, torch.rand(32))
        blocks, count = run(score_J, own, pattern), min(own + 1, 7)
        assert blocks[0] == 0
        assert blocks[count - 1] == own
        assert (blocks[:count].diff() > 0).all()
        assert (blocks[count:] == -1).all()
