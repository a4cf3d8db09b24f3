"""What must hold of attention whatever the numbers: the past does not see the future, nor a document its neighbour."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from paceline.recipes.nsa.attention import DenseAttention, Shape, dense_mask
from paceline.recipes.nsa.pattern import Pattern
from paceline.recipes.nsa.rotary import build_rotation, rotate
from tests.recipes.nsa.attentions import SMALL, build, frame_of, make_hidden, make_positions, relative_error


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("changed", [1, 63, 64, 65, 100, 179])
def test_the_future_changes_no_bit_of_the_past(changed: int, dtype: torch.dtype) -> None:
    positions = make_positions((180,), (70, 110))
    attention = build().float()
    frame = frame_of(positions, attention, torch.float32)
    hidden = make_hidden(positions).float()
    other = hidden.clone()
    other[:, changed:] = 3 * torch.randn_like(other[:, changed:])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        before, after = attention(hidden, frame), attention(other, frame)
    assert torch.equal(before[:, :changed], after[:, :changed])
    assert not torch.equal(before[:, changed:], after[:, changed:])


def test_a_document_does_not_see_its_neighbours() -> None:
    positions = make_positions((60, 75, 45))
    attention = build().float()
    frame = frame_of(positions, attention, torch.float32)
    hidden = make_hidden(positions).float()
    other = hidden.clone()
    other[:, :60], other[:, 135:] = torch.randn(1, 60, 48), torch.randn(1, 45, 48)
    with torch.no_grad():
        before, after = attention(hidden, frame), attention(other, frame)
    assert torch.equal(before[:, 60:135], after[:, 60:135])
    assert not torch.equal(before[:, 135:], after[:, 135:])


def test_a_packed_document_computes_what_it_would_alone() -> None:
    lengths = (60, 5, 131, 1)
    positions = make_positions(lengths)
    attention = build()
    hidden = make_hidden(positions)
    packed = attention(hidden, frame_of(positions, attention)).split(lengths, dim=1)
    for found, own in zip(packed, hidden.split(lengths, dim=1), strict=True):
        alone = attention(own, frame_of(make_positions((own.shape[1],)), attention))
        assert relative_error(found, alone) < 1e-13


def test_a_document_of_another_length_in_front_changes_nothing() -> None:
    """Blocks are counted from the start of the document, not of the row."""
    attention = build()
    hidden = make_hidden(make_positions((150,)))
    outputs = []
    for before in (1, 13, 64):
        row = torch.cat([make_hidden(make_positions((before,)), seed=9), hidden], dim=1)
        outputs.append(attention(row, frame_of(make_positions((before, 150)), attention))[:, before:])
    for found in outputs[1:]:
        assert relative_error(found, outputs[0]) < 1e-13


@pytest.mark.parametrize("shift", [1, 1000, 65_536])
def test_scores_see_distances_alone(shift: int) -> None:
    query, key = torch.randn(2, 1, 50, 3, 16, dtype=torch.float64)
    scores = []
    for start in (0, shift):
        rotation = build_rotation(torch.arange(start, start + 50)[None], 16, torch.float64)
        turned = rotate(query, rotation), rotate(key, rotation)
        scores.append(torch.einsum("bqhd,bshd->bhqs", *turned))
    torch.testing.assert_close(scores[0], scores[1], rtol=1e-9, atol=1e-9)
    assert not torch.allclose(scores[0], torch.einsum("bqhd,bshd->bhqs", query, key))


def test_every_head_is_turned_by_itself() -> None:
    """Heads side by side are not one wide head."""
    states, positions = torch.randn(1, 20, 3, 16), torch.arange(20)[None]
    rotation = build_rotation(positions, 16, torch.float32)
    for head in range(3):
        alone = rotate(states[:, :, head : head + 1], rotation)
        assert torch.equal(rotate(states, rotation)[:, :, head : head + 1], alone)


def test_far_positions_keep_their_precision() -> None:
    positions = torch.tensor([[65_535]])
    narrow, wide = (build_rotation(positions, 64, dtype) for dtype in (torch.float32, torch.float64))
    assert (narrow.sine.double() - wide.sine).abs().amax() < 1e-7


@pytest.mark.parametrize("stages", ["torch", "reference"])
def test_by_the_reference_it_is_the_same(stages: str) -> None:
    positions = make_positions((40, 30), (1, 69))
    by_torch, by_reference = build(), build(stages=None)
    hidden = make_hidden(positions)
    found = (by_torch if stages == "torch" else by_reference)(hidden, frame_of(positions, by_torch))
    expected = by_reference(hidden, frame_of(positions, by_torch))
    assert relative_error(found, expected) < 1e-13


def test_query_states_and_gates_are_one_product_of_whole_columns() -> None:
    """4 · 16 of the query, 6 · 2 · 16 of the states and 3 · 4 of the gates, up to a multiple of 64; the weights stay three."""
    positions, attention = make_positions((70,)), build()
    frame, products = frame_of(positions, attention), []

    class Products(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is F.linear and args[0].shape[-1] == 48:
                products.append(len(args[1]))
            return func(*args, **(kwargs or {}))

    with Products():
        attention(make_hidden(positions), frame)
    assert products == [320]
    named = dict(attention.named_parameters())
    names = ("project_query.weight", "project_states.weight", "gates.project.weight", "gates.project.bias")
    assert [len(named[name]) for name in names] == [64, 192, 12, 12]


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_the_dense_twin_looks_at_its_documents_past(kernel: str) -> None:
    positions = make_positions((30, 11, 1), (42,))
    torch.manual_seed(0)
    attention = DenseAttention(Shape(48, 4, 2, 16, SMALL), kernel).double()
    hidden = make_hidden(positions).requires_grad_()
    frame = frame_of(positions, attention)
    found = attention(hidden, frame, None, dense_mask(frame))
    rows = []
    for row, lengths in zip(hidden, [(30, 11, 1), (42,)], strict=True):
        documents = []
        for own in row.split(lengths):
            rotation = build_rotation(torch.arange(len(own))[None], 16, torch.float64)
            query = rotate(F.linear(own, attention.project_query.weight).view(1, -1, 4, 16), rotation)
            states = F.linear(own, attention.project_states.weight).view(1, -1, 2, 2, 16)
            key, value = rotate(states[:, :, 0], rotation), states[:, :, 1]
            heads_first = (each.transpose(1, 2) for each in (query, key, value))
            mixed = F.scaled_dot_product_attention(*heads_first, is_causal=True, enable_gqa=True)
            documents.append(F.linear(mixed.transpose(1, 2).flatten(2), attention.project_out.weight)[0])
        rows.append(torch.cat(documents))
    expected = torch.stack(rows)
    upstream = torch.randn_like(expected)
    # The eager kernel has its softmax in fp32.
    limit = 1e-13 if kernel == "sdpa" else 1e-6
    assert relative_error(found, expected) < limit
    wanted = [hidden, *attention.parameters()]
    for mine, theirs in zip(
        torch.autograd.grad(found, wanted, upstream), torch.autograd.grad(expected, wanted, upstream), strict=True
    ):
        assert relative_error(mine, theirs) < limit


def test_one_document_per_row_needs_no_mask() -> None:
    positions = make_positions((40,), (40,))
    attention = DenseAttention(Shape(48, 4, 2, 16, SMALL), "sdpa").double()
    hidden, frame = make_hidden(positions), frame_of(positions, attention)
    assert relative_error(attention(hidden, frame), attention(hidden, frame, None, dense_mask(frame))) < 1e-13


def test_the_paper_has_these_sizes() -> None:
    pattern = Pattern()
    assert (pattern.block, pattern.stride, pattern.selection_block, pattern.selected, pattern.window) == (
        32,
        16,
        64,
        16,
        512,
    )
    assert (pattern.initial, pattern.local) == (1, 2)
