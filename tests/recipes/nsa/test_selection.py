"""Which blocks are selected: against brute force, and what must hold of every selection."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from paceline.recipes.nsa import reference
from paceline.recipes.nsa.pattern import Pattern
from paceline.recipes.nsa.selection import choose_blocks, overlap_weights, score_blocks
from paceline.recipes.nsa.torch_path import attend_compressed, select
from tests.recipes.nsa.attentions import SMALL, frame_of, make_positions
from tests.recipes.nsa.attentions import build as build_attention

PAPER = Pattern()


def test_the_weights_are_those_of_the_docstring() -> None:
    weights = overlap_weights(9, 3, PAPER, torch.device("cpu"))
    assert weights[:, 1].tolist() == [0, 0, 0, 1, 2, 2, 2, 1, 0]
    assert weights[:, 0].tolist() == [2, 2, 2, 1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("pattern", [PAPER, SMALL, Pattern(32, 32, 64, 4, 8), Pattern(48, 16, 48, 4, 8)])
def test_scores_are_equation_9(pattern: Pattern) -> None:
    """Summed as the paper writes it, m and n one by one."""
    weights = torch.rand(40, dtype=torch.float64)
    scores = score_blocks(weights[None, None, None], torch.zeros(1, 1, dtype=torch.int64), 12, pattern)
    sizes = reference.Sizes(
        1, 1, pattern.block, pattern.stride, pattern.selection_block, pattern.selected, pattern.window, "sigmoid"
    )
    expected = [reference._score(weights.tolist(), j, sizes) for j in range(12)]
    torch.testing.assert_close(scores.flatten(), torch.tensor(expected, dtype=torch.float64))


def choose(scores: list[float], position: int, pattern: Pattern = SMALL) -> list[int]:
    blocks = choose_blocks(
        torch.tensor(scores, dtype=torch.float32)[None, None, None], torch.tensor([[position]]), pattern
    )
    return blocks.flatten().tolist()


def test_forced_blocks_come_first_then_the_best_then_the_lower_number() -> None:
    assert choose([0, 0, 5, 9, 0, 0, 0], position=16 * 6) == [0, 3, 5, 6]
    assert choose([0, 7, 5, 7, 7, 0, 0], position=16 * 6 + 15) == [0, 1, 5, 6]
    assert choose([0] * 7, position=16 * 6) == [0, 1, 5, 6]
    assert choose([9] * 7, position=16 * 3, pattern=replace(SMALL, selected=3)) == [0, 2, 3]


def test_nothing_is_selected_from_the_future_and_none_twice() -> None:
    assert choose([0, 0, 9, 9], position=15) == [0, -1, -1, -1]
    assert choose([0, 0, 9, 9], position=16) == [0, 1, -1, -1]
    assert choose([0, 0, 9, 9], position=32) == [0, 1, 2, -1]
    assert choose([3.0], position=0) == [0, -1, -1, -1]


def brute_force(query, keys, starts, pattern):
    """Every query's blocks and the margin by which they were chosen, in loops over raw scores."""
    (length, heads, width), (groups,) = query.shape, keys.shape[1:2]
    chosen = torch.full((length, groups, pattern.selected), -1)
    margins = torch.full((length, groups), torch.inf, dtype=torch.float64)
    for t in range(length):
        position, begin = t - starts[t], starts[t]
        own = position // pattern.selection_block
        for g in range(groups):
            slots = [
                n for n, (document, last) in enumerate(keys_of(starts, pattern)) if document == begin and last <= t
            ]
            score = dict.fromkeys(range(own + 1), 0.0)
            for head in range(g * heads // groups, (g + 1) * heads // groups):
                if not slots:
                    break
                weights = torch.softmax(keys[slots, g] @ query[t, head] / width**0.5, dim=0).tolist()
                for i, weight in enumerate(weights):
                    for token in range(i * pattern.stride, i * pattern.stride + pattern.block):
                        if token // pattern.selection_block in score:
                            score[token // pattern.selection_block] += weight / pattern.stride
            forced = [j for j in score if j < pattern.initial or j > own - pattern.local]
            others = sorted((j for j in score if j not in forced), key=lambda j: (-score[j], j))
            room = pattern.selected - len(forced)
            picked = sorted(forced + others[:room])
            chosen[t, g, : len(picked)] = torch.tensor(picked)
            if 0 < room < len(others):
                margins[t, g] = score[others[room - 1]] - score[others[room]]
    return chosen, margins


def keys_of(starts: list[int], pattern: Pattern) -> list[tuple[int, int]]:
    """(document's start, last token) of each slot."""
    length = len(starts)
    ends = []
    for t in range(length):
        count = t - starts[t] + 1 - pattern.block
        if count >= 0 and count % pattern.stride == 0:
            ends.append((starts[t], t))
    return ends


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("documents", [(230,), (100, 7, 123)])
def test_equals_brute_force_where_the_margin_exceeds_rounding(documents: tuple[int, ...], dtype: torch.dtype) -> None:
    positions = make_positions(documents)
    attention = build_attention()
    frame = frame_of(positions, attention)
    length, random = sum(documents), torch.Generator().manual_seed(3)
    query = 2 * torch.randn(1, length, 4, 16, generator=random, dtype=torch.float64)
    keys = torch.randn(1, frame.ends_BN.shape[1], 2, 16, generator=random, dtype=torch.float64)
    expected, margins = brute_force(query[0], keys[0], frame.starts_BT[0].tolist(), SMALL)
    query, keys = query.to(dtype), keys.to(dtype)
    _, logsum = attend_compressed(query, keys, keys, frame)
    blocks = select(query, keys, logsum, frame, SMALL)[0]
    is_clear = margins > (1e-12 if dtype == torch.float64 else 1e-5)
    assert is_clear.float().mean() > 0.95
    assert torch.equal(blocks[is_clear], expected[is_clear])
    assert (margins < torch.inf).float().mean() > 0.3, "hardly anything was chosen"


def test_every_selection_has_the_forced_blocks_and_only_the_past() -> None:
    positions = make_positions((200, 1, 99), (31, 269))
    attention = build_attention(heads=12, groups=2)
    frame = frame_of(positions, attention)
    query = torch.randn(2, 300, 12, 16)
    keys = torch.randn(2, frame.ends_BN.shape[1], 2, 16)
    blocks = select(query, keys, attend_compressed(query, keys, keys, frame)[1], frame, SMALL)
    assert blocks.shape == (2, 300, 2, SMALL.selected), "one selection for all heads of a group"
    own = (positions // SMALL.selection_block)[..., None, None]
    assert (blocks <= own).all()
    counts = (blocks >= 0).sum(-1, keepdim=True)
    assert torch.equal(counts, (own + 1).clamp(max=SMALL.selected).expand_as(counts))
    for forced in (torch.zeros_like(own), own, (own - 1).clamp(min=0)):
        assert (blocks == forced).any(-1).all()
    filled = blocks[..., 1:] >= 0
    assert (blocks[..., 1:] > blocks[..., :-1])[filled].all(), "rising, so none twice"


def test_autocast_does_not_round_what_selects() -> None:
    """Scores of bf16 would choose other blocks for many queries than those of fp32."""
    positions = make_positions((600,), (250, 350))
    frame = frame_of(positions, build_attention())
    random = torch.Generator().manual_seed(5)
    query = torch.randn(2, 600, 4, 16, generator=random)
    keys = torch.randn(2, frame.ends_BN.shape[1], 2, 16, generator=random)
    _, logsum = attend_compressed(query, keys, keys, frame)
    expected = select(query, keys, logsum, frame, SMALL)
    with torch.autocast("cpu", torch.bfloat16):
        found = select(query, keys, logsum, frame, SMALL)
    assert torch.equal(found, expected)
