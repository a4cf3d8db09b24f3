"""Selected attention by the blocks' queries: by Hopper's copy engine, by other GPUs' kernels, some queries at a time; against plain torch in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from paceline.recipes.nsa import torch_path
from paceline.recipes.nsa.kernels import fast_path
from paceline.recipes.nsa.kernels.chosen_work import PIECE, plan_work
from paceline.recipes.nsa.pattern import Pattern
from paceline.recipes.nsa.selection import choose_blocks
from tests.recipes.nsa.attentions import build, make_positions, relative_error
from tests.recipes.nsa.kernels.work import draw_choice, list_pieces, read_pieces

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400), pytest.mark.usefixtures("backward_thread")]

PAPER = Pattern()
LIMITS = {torch.bfloat16: 2e-2, torch.float16: 4e-3}


def draw_chosen(
    heads: int, groups: int, width: int, dtype: torch.dtype, *rows: tuple[int, ...]
) -> tuple[Callable[[], list[Tensor]], list[Tensor]]:
    """Selected attention by blocks, of packed rows and blocks drawn at random: what gives its output and the gradients of queries, keys and
    values; and the same by plain torch in float64."""
    positions = make_positions(*rows).cuda()
    length = positions.shape[1]
    frame = build(heads, groups, width, PAPER, stages=fast_path.FAST).build_frame(positions, torch.float32)
    random = torch.Generator("cuda").manual_seed(11)
    shape = (len(rows), groups, length, PAPER.num_selection(length))
    blocks = choose_blocks(torch.rand(shape, device="cuda", generator=random), positions, PAPER)
    shapes = [(len(rows), length, count, width) for count in (heads, groups, groups, heads)]
    *given, upstream = (torch.randn(shape, device="cuda", generator=random).to(dtype) for shape in shapes)
    states = [each.requires_grad_() for each in given]
    exact = [each.detach().double().requires_grad_() for each in states]
    expected = torch_path.attend_selected(*exact, blocks, frame, PAPER)

    def run() -> list[Tensor]:
        found = fast_path.attend_selected(*states, blocks, frame, PAPER)
        return [found, *torch.autograd.grad(found, states, upstream)]

    return run, [expected, *torch.autograd.grad(expected, exact, upstream.double())]


@pytest.mark.parametrize("rows", [[(5000,), (1, 4000, 999)], [(3,) * 1600 + (200,)]], ids=["long", "short"])
@pytest.mark.parametrize("size", [5000, 1777])
def test_each_block_has_its_queries_in_their_order(rows: list[tuple[int, ...]], size: int) -> None:
    """Many programs set bits side by side: as lists of Python have them, and the same again."""
    positions = make_positions(*rows)
    chosen = draw_choice(positions, 2, 64, 16, seed=0)
    owner = (torch.arange(5000) - positions % 64).int().cuda()
    for t0 in range(0, 5000, size):
        some = chosen[:, t0 : t0 + size].contiguous()
        expected = list_pieces(some, PIECE)
        for _ in range(2):
            assert read_pieces(plan_work(some.cuda(), owner, t0, 64, 0)) == expected


@pytest.mark.parametrize(("heads", "groups", "width"), [(4, 2, 64), (12, 2, 64), (16, 1, 128)])
def test_some_queries_at_a_time_give_the_same(
    heads: int, groups: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where what all queries find would not fit: theirs to the bit, and what they add to keys but for the order of sums."""
    run, expected = draw_chosen(heads, groups, width, torch.bfloat16, (2300, 1, 700), (3001,))
    together = run()
    monkeypatch.setattr("paceline.recipes.nsa.kernels.chosen_attention._MOST_PARTS", 2**24)
    apart = run()
    assert all(torch.equal(a, b) for a, b in zip(together[:2], apart[:2], strict=True))
    assert not torch.equal(together[2], apart[2]), "it was one slice"
    errors = [relative_error(a, b) for a, b in zip(apart, expected, strict=True)]
    assert max(errors) <= LIMITS[torch.bfloat16], errors
    assert all(torch.equal(a, b) for a, b in zip(apart, run(), strict=True))


@pytest.mark.parametrize("rows", [[(2300, 1, 700), (3001,)], [(3,) * 1000, (70,) * 40 + (200,)]], ids=["long", "short"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("heads", "groups", "width"), [(5, 1, 64), (12, 2, 64), (16, 1, 64), (10, 2, 128), (32, 2, 128)]
)
def test_gathered_blocks_are_read_as_others_are(
    heads: int,
    groups: int,
    width: int,
    dtype: torch.dtype,
    rows: list[tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the copy engine and four warps that compute, or by threads that do everything: the same products, and sums but for their order.

    Of short documents there are more blocks than programs: each takes several, one after another.
    """
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("these kernels are for Hopper")
    run, expected = draw_chosen(heads, groups, width, dtype, *rows)
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        gathered = run()
        torch.cuda.synchronize()
    names = {row.key for row in profiler.key_averages()}
    assert {"nsa_chosen_gather_forward_kernel", "nsa_chosen_gather_gradient_kernel"} <= names
    assert all(torch.equal(a, b) for a, b in zip(gathered, run(), strict=True)), "the same bits again"
    errors = [relative_error(a, b) for a, b in zip(gathered, expected, strict=True)]
    assert max(errors) <= LIMITS[dtype], errors
    monkeypatch.setattr("paceline.recipes.nsa.kernels.chosen_attention.can_gather", lambda *_: False)
    errors = [relative_error(a, b) for a, b in zip(gathered, run(), strict=True)]
    print([f"{error:.1e}" for error in errors])
    assert max(errors) < 5e-4
