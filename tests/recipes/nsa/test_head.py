"""Losses in parts, against cross_entropy of all logits at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from paceline.recipes.nsa import batch, head
from paceline.recipes.nsa.data import packing
from tests.recipes.nsa.attentions import relative_error


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_loss_and_gradients(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "MOST_BYTES", 30 * 7 * 4)
    random = torch.Generator().manual_seed(0)
    hidden = torch.randn(50, 16, generator=random, dtype=torch.float64)
    weights = torch.randn(30, 16, generator=random, dtype=torch.float64)
    labels = torch.randint(30, (50,), generator=random)
    labels[::3] = head.NO_LABEL
    hidden.requires_grad_(), weights.requires_grad_()
    expected = F.cross_entropy(hidden @ weights.T, labels, reduction="sum")
    wanted = torch.autograd.grad(3 * expected, (hidden, weights))
    stored = torch.float64 if dtype == torch.float64 else torch.float32
    mine = hidden.detach().to(stored).requires_grad_(), weights.detach().to(stored).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        found = head.sum_losses(*mine, labels)
    limit = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    assert relative_error(found, expected) < limit
    for got, want in zip(torch.autograd.grad(3 * found, mine), wanted, strict=True):
        assert relative_error(got, want) < limit
    losses, is_right = head.score_tokens(*mine, labels)
    assert relative_error(losses.sum(), expected) < 1e-5
    assert torch.equal(is_right, (hidden @ weights.T).argmax(1) == labels)
    assert not losses[::3].any()


def test_parts() -> None:
    """Whole tiles of tokens where there are many, at least one token in any case, and all of them once."""
    parts = head.split_tokens(30_000, 50_304, torch.bfloat16)
    assert {part.stop - part.start for part in parts[:-1]} == {10_624}
    assert [token for part in parts for token in range(part.start, part.stop)] == list(range(30_000))
    assert head.split_tokens(3, 10**9, torch.float32) == [slice(0, 1), slice(1, 2), slice(2, 3)]
    assert head.split_tokens(300, 258, torch.float32) == [slice(0, 300)]


def test_no_sum_of_fp16_is_longer_than_its_numbers_go() -> None:
    """130,000 bytes at once, one of them frequent, as first steps have them: one sum would be some 19,000 × 5, and fp16 ends at 65,504."""
    torch.manual_seed(0)
    hidden = (5 + torch.randn(131_072, 16)).requires_grad_()
    weights = torch.zeros(258, 16, requires_grad=True)
    labels = torch.randint(258, (len(hidden),)).where(torch.rand(len(hidden)) > 0.15, 7)
    with torch.autocast("cpu", torch.float16):
        (found,) = torch.autograd.grad(head.sum_losses(hidden, weights, labels), weights)
    (expected,) = torch.autograd.grad(head.sum_losses(hidden, weights, labels), weights)
    assert relative_error(found, expected) < 2e-3


def test_no_label_at_all() -> None:
    hidden, weights = torch.randn(4, 8, requires_grad=True), torch.randn(10, 8, requires_grad=True)
    found = head.sum_losses(hidden, weights, torch.full((4,), head.NO_LABEL))
    found.backward()
    assert found == 0
    assert not hidden.grad.any()
    assert not weights.grad.any()


def test_what_has_no_label_is_said_in_one_place() -> None:
    assert head.NO_LABEL is batch.NO_LABEL is packing.NO_LABEL
    root = Path(head.__file__).parent
    assert [file.name for file in root.rglob("*.py") if "\nNO_LABEL = " in file.read_text()] == ["batch.py"]
