import math

import pytest
import torch

from paceline.recipes.sasrec.config import Model
from paceline.recipes.sasrec.model import Sasrec

NUM_ITEMS, LENGTH = 40, 12


def build(attention="sdpa", **changes):
    torch.manual_seed(0)
    model = Sasrec(NUM_ITEMS, LENGTH, Model(**{"width": 16, "heads": 2, "dropout": 0.3} | changes), attention)
    # Larger weights than at the start, so that attention matters in what is compared.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.eval()


def all_scores(model, items):
    """(B, L, N)"""
    return model(items, torch.arange(items.numel())).unflatten(0, items.shape)


@pytest.fixture
def items():
    return torch.randint(1, NUM_ITEMS + 1, (3, LENGTH), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_future_does_not_change_the_past(items, attention):
    model = build(attention)
    changed = items.clone()
    changed[:, 7:] = changed[:, 7:] % NUM_ITEMS + 1
    before, after = all_scores(model, items), all_scores(model, changed)
    torch.testing.assert_close(after[:, :7], before[:, :7], rtol=0, atol=1e-6)
    assert not torch.allclose(after[:, 7:], before[:, 7:], atol=1e-2)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_past_matters(items, attention):
    model = build(attention)
    changed = items.clone()
    changed[:, 0] = changed[:, 0] % NUM_ITEMS + 1
    assert not torch.allclose(all_scores(model, changed)[:, -1], all_scores(model, items)[:, -1], atol=1e-3)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padding_does_not_matter(items, attention):
    model = build(attention)
    padded = items.clone()
    padded[0, 5:] = 0
    alone = all_scores(model, items[:1, :5])
    torch.testing.assert_close(all_scores(model, padded)[:1, :5], alone, rtol=1e-5, atol=1e-5)
    # Whatever padding became, nobody looks at it.
    with torch.no_grad():
        model.item_embedding.weight[0] = 100.0
    torch.testing.assert_close(all_scores(model, padded)[:1, :5], alone, rtol=1e-5, atol=1e-5)


def test_both_kernels_agree(items):
    torch.testing.assert_close(
        all_scores(build("eager"), items), all_scores(build("sdpa"), items), rtol=1e-4, atol=1e-4
    )


def test_candidates_get_the_scores_they_have_among_all(items):
    model = build()
    positions = torch.tensor([3, 17, 30])
    candidates = torch.tensor([[1, 40], [7, 7], [2, 3]])
    expected = model(items, positions).gather(1, candidates - 1)
    torch.testing.assert_close(model(items, positions, candidates), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("candidates", [None, torch.tensor([[1, 2]])])
def test_scores_are_fp32_under_autocast(items, candidates):
    with torch.autocast("cpu", torch.bfloat16):
        assert build()(items, torch.tensor([5]), candidates).dtype == torch.float32


@torch.no_grad()
def test_the_attention_of_one_head_is_the_textbooks():
    """Against float64 loops that share no code with the model."""
    model = build(blocks=1, heads=1, width=4).double()
    attention = model.blocks[0].attention
    hidden = torch.randn(1, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    query, key, value = (hidden[0] @ attention.project_in.weight.T + attention.project_in.bias).split(4, dim=1)
    rows = []
    for position in range(5):
        scores = [(query[position] @ key[other]).item() / 2.0 for other in range(position + 1)]
        weights = torch.tensor([math.exp(score) for score in scores], dtype=torch.float64)
        weights = weights / weights.sum()
        rows.append(sum(weights[other] * value[other] for other in range(position + 1)))
    expected = torch.stack(rows) @ attention.project_out.weight.T + attention.project_out.bias
    torch.testing.assert_close(attention(hidden)[0], expected, rtol=1e-12, atol=1e-12)


def test_dropout_only_in_training(items):
    model = build()
    assert torch.equal(all_scores(model, items), all_scores(model, items))
    model.train()
    assert not torch.equal(all_scores(model, items), all_scores(model, items))


def test_the_padding_row_stays_zero():
    model = Sasrec(NUM_ITEMS, LENGTH, Model(width=16, dropout=0.0), "sdpa")
    assert not model.item_embedding.weight[0].any()
    model(torch.tensor([[3, 4, 0]]), torch.tensor([0, 1])).logsumexp(1).sum().backward()
    assert not model.item_embedding.weight.grad[0].any()
    assert model.item_embedding.weight.grad[1:].any(dim=1).all()
