"""The GPU kernels without a GPU: by Triton's interpreter, in fp32 and with narrow heads, against plain torch. tests/gpu has the real ones.

Whether kernels are interpreted is decided when Triton is imported: test_kernels.py runs these tests in a process of their own.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.recipes.nsa import torch_path
from paceline.recipes.nsa.cache import SparseCache
from paceline.recipes.nsa.compression import Compression
from paceline.recipes.nsa.kernels import chosen_attention, fast_cache, fast_path, fast_selection, past_attention
from paceline.recipes.nsa.kernels.fast_cache import FastCache
from paceline.recipes.nsa.moment import build_moment
from paceline.recipes.nsa.pattern import Frame, Pattern, build_frame
from paceline.recipes.nsa.rotary import build_rotation
from paceline.recipes.nsa.selection import choose_blocks
from paceline.recipes.nsa.stages import Stages, States, turn_keys
from tests.recipes.nsa.attentions import relative_error

# Of lanes that nobody looks at.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SMALL = Pattern(block=8, stride=4, selection_block=16, selected=4, window=24)
WIDTH = 16
LIMIT = 5e-6
HALF_LIMIT = 2e-3


def go_through(
    stages: Stages, given: Sequence[Tensor], compression: Compression, frame: Frame, pattern: Pattern,
    blocks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(the blocks, selected here unless they are given, and the branches' mix), of a query, six states and gates."""
    query, *states, gates = given
    laid_out = stages.lay_out(frame, pattern)
    keys, values = (stages.compress(each, compression, laid_out) for each in states[:2])
    compressed, logsum = stages.attend_compressed(query, keys, values, laid_out)
    if blocks is None:
        blocks = stages.select(query.detach(), keys.detach(), logsum, laid_out, pattern)
    selected = stages.attend_selected(query, states[2], states[3], blocks, laid_out, pattern)
    window = stages.attend_window(query, states[4], states[5], laid_out, pattern)
    return blocks, stages.mix(gates, compressed, selected, window)


@pytest.mark.parametrize(
    ("rows", "documents", "groups", "heads", "pattern", "by_words"),
    [
        (1, (60, 3, 20), 2, 3, SMALL, True),
        (2, (40, 1, 24), 1, 4, SMALL, False),
        (1, (75,), 1, 16, replace(SMALL, selection_block=32, selected=2), True),
        (1, (50, 41), 2, 1, Pattern(block=16, stride=4, selection_block=16, selected=5, window=10), False),
    ],
)
def test_every_stage_and_its_gradients(
    rows: int, documents: tuple[int, ...], groups: int, heads: int, pattern: Pattern, by_words: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(past_attention, "MOST_BLOCKS", 32 if by_words else 0)
    # Some queries at a time, as long rows have it.
    monkeypatch.setattr(fast_selection, "_MOST_SCORES", 1)
    monkeypatch.setattr(chosen_attention, "_MOST_PARTS", 2**15)
    torch.manual_seed(0)
    positions = torch.cat([torch.arange(length) for length in documents]).expand(rows, -1).contiguous()
    frame = build_frame(positions, pattern, WIDTH, torch.float32)
    length = positions.shape[1]
    query, *states = [
        torch.randn(rows, length, count, WIDTH, requires_grad=True) for count in (heads * groups, *[groups] * 6)
    ]
    gates = torch.rand(rows, length, heads * groups, 3, requires_grad=True)
    compression = Compression(pattern.block, WIDTH, 24)
    flows_to = [query, *states, gates, *compression.parameters()]
    upstream = torch.randn(rows, length, heads * groups, WIDTH)

    def run(stages: Stages) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        blocks, mixed = go_through(stages, (query, *states, gates), compression, frame, pattern)
        return mixed.detach(), blocks, torch.autograd.grad(mixed, flows_to, upstream)

    mixed, blocks, gradients = run(fast_path.FAST)
    expected, expected_blocks, expected_gradients = run(torch_path.TORCH)
    assert torch.equal(blocks, expected_blocks)
    assert relative_error(mixed, expected) < LIMIT
    for gradient, of_torch in zip(gradients, expected_gradients, strict=True):
        assert relative_error(gradient, of_torch) < LIMIT


@pytest.mark.parametrize("by_words", [True, False])
def test_every_stage_and_its_gradients_in_fp16(by_words: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against plain torch in float64, of the same numbers. In bf16 what the interpreter multiplies is wrong."""
    monkeypatch.setattr(past_attention, "MOST_BLOCKS", 32 if by_words else 0)
    torch.manual_seed(0)
    groups, heads, width = 2, 3, 64
    positions = torch.cat([torch.arange(length) for length in (60, 3, 40)])[None]
    length = positions.shape[1]
    frame = build_frame(positions, SMALL, width, torch.float32)
    counts = (heads * groups, *[groups] * 6)
    query, *states = (torch.randn(1, length, count, width).half().requires_grad_() for count in counts)
    gates = torch.rand(1, length, heads * groups, 3, requires_grad=True)
    compression = Compression(SMALL.block, width, 24)
    upstream = torch.randn(1, length, heads * groups, width).half()

    def run(stages: Stages, given: Sequence[Tensor], phi: Compression, blocks: Tensor | None = None) -> list[Tensor]:
        blocks, mixed = go_through(stages, given, phi, frame, SMALL, blocks)
        return [blocks, mixed, *torch.autograd.grad(mixed, [*given, *phi.parameters()], upstream.to(mixed.dtype))]

    given = (query, *states, gates)
    with torch.autocast("cpu", torch.float16):
        blocks, mixed, *gradients = run(fast_path.FAST, given, compression)
    exact = [each.detach().double().requires_grad_() for each in given]
    phi = copy.deepcopy(compression).double()
    _, *expected = run(torch_path.TORCH, exact, phi, blocks)
    assert mixed.dtype == torch.float16
    errors = [relative_error(*pair) for pair in zip((mixed, *gradients), expected, strict=True)]
    assert all(error < HALF_LIMIT for error in errors), errors
    chosen = run(torch_path.TORCH, exact, phi)[0]
    assert (blocks == chosen).all(-1).float().mean() > 0.97, "but for near-ties"


@pytest.mark.parametrize("kind", ["random", "equal", "few", "huge"])
def test_the_highest_scores_and_of_equal_ones_the_first(kind: str) -> None:
    pattern = Pattern(block=8, stride=4, selection_block=8, selected=7, window=24)
    length, num_blocks = 150, pattern.num_selection(150)
    torch.manual_seed(0)
    drawn = torch.rand(1, 2, length, num_blocks)
    scores = {"random": drawn, "equal": drawn * 0, "few": (drawn * 4).floor(), "huge": drawn**30 * 1e30}[kind]
    positions = torch.arange(length)[None]
    frame = fast_path.lay_out(build_frame(positions, pattern, WIDTH, torch.float32), pattern)
    blocks = torch.empty(1, length, 2, pattern.selected, dtype=torch.int64)
    # A block of 8 tokens reaches into the next selection block: what it adds there stands in the second part.
    fast_selection._choose(torch.stack([scores, scores * 0]), blocks, frame.position_BT, pattern, 0)
    assert torch.equal(blocks, choose_blocks(scores, positions, pattern))


@pytest.mark.parametrize(("groups", "heads", "prompt", "length"), [(1, 3, 60, 100), (2, 1, 1, 12)])
def test_token_by_token(groups: int, heads: int, prompt: int, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores double on the way; from the fifth block on some are not chosen."""
    monkeypatch.setattr(fast_cache, "_LEAST", 8)
    torch.manual_seed(0)
    rows = 2
    keys, values = (Compression(SMALL.block, WIDTH, 24) for _ in range(2))
    states = States(*torch.randn(6, rows, length, groups, WIDTH))
    query = torch.randn(rows, length, groups * heads, WIDTH)
    gates = torch.rand(rows, length, groups * heads, 3)

    def at(begin: int, end: int, *given: Tensor) -> list[Any]:
        return [each[:, begin:end] for each in given]

    rotation = build_rotation(torch.arange(prompt).expand(rows, -1), WIDTH, torch.float32)
    plain, fast = SparseCache(SMALL), FastCache(SMALL)
    chosen: list[Tensor] = []
    select = plain._select
    monkeypatch.setattr(plain, "_select", lambda *given: chosen.append(select(*given)) or chosen[-1])
    with torch.no_grad():
        for cache in (plain, fast):
            cache.append(turn_keys(States(*at(0, prompt, *states)), rotation), keys, values)
        for t in range(prompt, length):
            moment = build_moment(torch.tensor([t]), SMALL, WIDTH, torch.float32)
            token = (*at(t, t + 1, query), States(*at(t, t + 1, *states)), *at(t, t + 1, gates), moment, keys, values)
            expected = plain.step(*token)
            fast.make_room()
            found = fast.step(*token)
            fast.advance()
            assert relative_error(found, expected) < LIMIT, t
            assert fast.blocks_BGn is not None
            assert torch.equal(fast.blocks_BGn.long(), chosen[-1][:, 0])
    assert fast.length == plain.length == length
