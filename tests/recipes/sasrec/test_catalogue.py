import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from paceline.recipes.rank_metrics import compute_metrics
from paceline.recipes.sasrec import parts
from paceline.recipes.sasrec.catalogue import cross_entropy, rank_among, rank_among_all, top_items


@pytest.fixture(params=[None, 1, 23, 64])
def rows_at_once(request, monkeypatch):
    """Everything in one part, or in parts of so many of the catalogue's 41 columns."""
    if request.param is not None:
        monkeypatch.setattr(parts, "MAX_ELEMENTS", 41 * request.param)
    return request.param


def draw(shape, seed, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def make(num_rows=64, num_items=40, width=8, dtype=torch.float64):
    """Hidden states, weights and targets, of which every seventh is none."""
    targets = torch.randint(1, num_items + 1, (num_rows,), generator=torch.Generator().manual_seed(2))
    targets[::7] = 0
    hidden, weights = draw((num_rows, width), 0, dtype), draw((num_items + 1, width), 1, dtype)
    return hidden.requires_grad_(), weights.requires_grad_(), targets


def plain(hidden, weights, targets):
    is_target = targets > 0
    return F.cross_entropy(hidden[is_target] @ weights[1:].T, targets[is_target] - 1, reduction="sum")


def gradients(loss, hidden, weights, targets, scale=1.0):
    total = loss(hidden, weights, targets)
    return total, *torch.autograd.grad(total * scale, (hidden, weights))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_cross_entropy_and_its_gradients_are_those_of_the_whole_product(rows_at_once, dtype, tolerance):
    arguments = make(dtype=dtype)
    for mine, theirs in zip(gradients(cross_entropy, *arguments), gradients(plain, *arguments), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)
        assert mine.dtype == dtype


def test_gradients_are_those_of_finite_differences(rows_at_once):
    hidden, weights, targets = make(num_rows=9, num_items=40, width=3)
    assert torch.autograd.gradcheck(lambda h, w: cross_entropy(h, w, targets), (hidden, weights))


def test_the_incoming_gradient_scales():
    arguments = make()
    once, thrice = gradients(cross_entropy, *arguments), gradients(cross_entropy, *arguments, scale=3.0)
    torch.testing.assert_close([3 * gradient for gradient in once[1:]], list(thrice[1:]))


def test_padding_has_no_gradient_and_rows_without_target_neither():
    hidden, weights, targets = make()
    _, grad_hidden, grad_weights = gradients(cross_entropy, hidden, weights, targets)
    assert not grad_weights[0].any()
    assert not grad_hidden[targets == 0].any()
    assert grad_hidden[targets > 0].any(1).all()


@pytest.mark.parametrize("num_rows", [0, 5])
def test_no_targets_cost_nothing_and_still_have_gradients(num_rows):
    hidden, weights, _ = make(num_rows)
    total, *found = gradients(cross_entropy, hidden, weights, torch.zeros(num_rows, dtype=torch.int64))
    assert total == 0
    assert not any(gradient.any() for gradient in found)


def test_large_scores_neither_overflow_nor_vanish():
    hidden, weights, targets = make(dtype=torch.float32)
    arguments = (hidden.detach() * 1000).requires_grad_(), weights, targets
    for mine, theirs in zip(gradients(cross_entropy, *arguments), gradients(plain, *arguments), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-3)
        assert mine.isfinite().all()


def test_never_more_scores_than_the_budget(monkeypatch):
    """Of a catalogue so large that the budget holds 3 rows, or not even 1."""
    hidden, weights, targets = make(num_rows=10, num_items=5000)
    expected = plain(hidden, weights, targets)
    sizes = []
    exponentiate = torch.Tensor.exp_

    def watch(scores):
        sizes.append(tuple(scores.shape))
        return exponentiate(scores)

    monkeypatch.setattr(torch.Tensor, "exp_", watch)
    for budget, expected_rows in ((3 * 5001, [3, 3, 3, 1]), (100, [1] * 10)):
        sizes.clear()
        monkeypatch.setattr(parts, "MAX_ELEMENTS", budget)
        torch.testing.assert_close(cross_entropy(hidden, weights, targets), expected)
        assert sizes == [(rows, 5000) for rows in expected_rows]


def test_no_gradients_where_none_are_wanted(monkeypatch):
    hidden, weights, targets = make()
    expected = cross_entropy(hidden, weights, targets)

    def refuse(*_):
        raise AssertionError("a gradient was computed")

    monkeypatch.setattr(torch.Tensor, "addmm_", refuse)
    with torch.no_grad():
        assert cross_entropy(hidden, weights, targets) == expected
    assert cross_entropy(hidden.detach(), weights.detach(), targets) == expected
    with pytest.raises(AssertionError, match="a gradient"):
        cross_entropy(hidden, weights, targets)


def test_half_precision_ends_at_the_product():
    hidden, weights, targets = make(dtype=torch.float32)
    rounded = hidden.detach().bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        total, grad_hidden, grad_weights = gradients(cross_entropy, rounded, weights, targets)
    expected = gradients(plain, rounded.detach().float().requires_grad_(), weights, targets)
    torch.testing.assert_close((total, grad_weights), (expected[0], expected[2]), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grad_hidden, expected[1].bfloat16())


def brute_force(scores, answer, seen=()):
    """The definition, item by item; scores of items from 1."""
    if answer in seen:
        return len(scores)
    others = [item for item in range(1, len(scores) + 1) if item != answer and item not in seen]
    return sum(1 for item in others if not scores[item - 1] < scores[answer - 1])


def make_scores(num_rows=200, num_items=40):
    """Scores with many ties, answers, items (0: none); with unit vectors as weights the hidden states are the scores."""
    random = np.random.default_rng(0)
    scores = random.integers(0, 12, (num_rows, num_items)).astype(np.float32)
    answers = random.integers(1, num_items + 1, num_rows)
    seen = random.integers(0, num_items + 1, (num_rows, 9))
    return torch.from_numpy(scores), torch.from_numpy(answers), torch.from_numpy(seen)


def unit_weights(num_items=40):
    return F.pad(torch.eye(num_items), (0, 0, 1, 0))


def test_ranks_agree_with_the_definition(rows_at_once):
    scores, answers, seen = make_scores()
    plain_ranks = rank_among_all(scores, unit_weights(), answers)
    masked_ranks = rank_among_all(scores, unit_weights(), answers, seen)
    cases = list(zip(scores.tolist(), answers.tolist(), map(set, seen.tolist()), strict=True))
    assert plain_ranks.tolist() == [brute_force(row, answer) for row, answer, _ in cases]
    assert masked_ranks.tolist() == [brute_force(*case) for case in cases]
    assert plain_ranks.dtype == torch.int64


def test_ranks_among_candidates_agree_with_the_definition(monkeypatch):
    scores, answers, candidates = make_scores()
    expected = [
        sum(1 for item in row if not item or not mine[item - 1] < mine[answer - 1])
        for mine, answer, row in zip(scores.tolist(), answers.tolist(), candidates.tolist(), strict=True)
    ]
    assert rank_among(scores, unit_weights(), answers, candidates).tolist() == expected
    monkeypatch.setattr(parts, "MAX_ELEMENTS", 10 * 40 * 7)
    assert rank_among(scores, unit_weights(), answers, candidates).tolist() == expected


@pytest.mark.parametrize("num_items", [39, 100, 1000, 3416, 4099])
@pytest.mark.parametrize("width", [1, 50, 64, 129])
def test_a_constant_model_scores_nothing(num_items, width):
    """Items that are all alike tie exactly, though a product computes them in tiles of several shapes."""
    hidden, weights = draw((37, width), 0), draw((1, width), 1).expand(num_items + 1, -1).contiguous()
    answers = torch.randint(1, num_items + 1, (37,), generator=torch.Generator().manual_seed(0))
    ranks = rank_among_all(hidden, weights, answers)
    assert ranks.tolist() == [num_items - 1] * 37
    assert not any(compute_metrics(ranks.numpy(), num_items, [10]).values())
    candidates = torch.arange(1, 39).expand(37, -1)
    assert rank_among(hidden, weights, answers, candidates).tolist() == [38] * 37


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("is_broken", ["hidden", "weights"])
def test_a_broken_model_scores_nothing(value, is_broken):
    hidden, weights = torch.ones(5, 4), torch.ones(101, 4)
    (hidden if is_broken == "hidden" else weights).fill_(value)
    answers, candidates = torch.tensor([1, 2, 50, 99, 100]), torch.tensor([[3, 4, 5]]).expand(5, -1)
    assert rank_among_all(hidden, weights, answers).tolist() == [99] * 5
    assert rank_among(hidden, weights, answers, candidates).tolist() == [3] * 5


def test_one_rival_that_is_not_a_number_counts_against_the_answer():
    weights = unit_weights(3)
    weights[3] = math.nan
    assert rank_among_all(torch.tensor([[2.0, 1.0, 0.0]]), weights, torch.tensor([1])).tolist() == [1]


def test_boosting_what_was_seen_gains_nothing_when_seen_items_are_masked():
    """Otherwise a repeated answer would be the only seen item left, and first."""
    scores = torch.tensor([[9.0, 8.0, 1.0, 0.0]])
    ranks = rank_among_all(scores, unit_weights(4), torch.tensor([2]), torch.tensor([[1, 2, 0]]))
    assert not any(compute_metrics(ranks.numpy(), 4, [1, 4]).values())


def test_renaming_the_items_renames_the_best_and_leaves_the_ranks():
    hidden, weights, answers = draw((50, 8), 0), draw((41, 8), 1), torch.arange(50) % 40 + 1
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0)) + 1
    permuted = torch.cat((weights[:1], weights[order]))
    new_name = torch.zeros(41, dtype=torch.int64)
    new_name[order] = torch.arange(1, 41)
    candidates = torch.randint(1, 41, (50, 7), generator=torch.Generator().manual_seed(1))
    assert torch.equal(rank_among_all(hidden, weights, answers), rank_among_all(hidden, permuted, new_name[answers]))
    assert torch.equal(
        rank_among(hidden, weights, answers, candidates),
        rank_among(hidden, permuted, new_name[answers], new_name[candidates.flip(1)]),
    )
    scores, items = top_items(hidden, weights, 10)
    new_scores, new_items = top_items(hidden, permuted, 10)
    torch.testing.assert_close(scores, new_scores)
    assert torch.equal(new_name[items], new_items)


def test_random_scores_score_chance():
    hidden, weights = draw((20_000, 16), 0), draw((51, 16), 1)
    answers = torch.randint(1, 51, (20_000,), generator=torch.Generator().manual_seed(2))
    deviation = math.sqrt(0.2 * 0.8 / 20_000)
    hit_rate = compute_metrics(rank_among_all(hidden, weights, answers).numpy(), 50, [10])["hr_10"]
    assert hit_rate == pytest.approx(0.2, abs=4 * deviation)
    # 9 others of each answer, none of them twice.
    candidates = torch.rand((20_000, 49), generator=torch.Generator().manual_seed(3)).argsort(1)[:, :9] + 1
    candidates += candidates >= answers[:, None]
    hit_rate = compute_metrics(rank_among(hidden, weights, answers, candidates).numpy(), 10, [2])["hr_2"]
    assert hit_rate == pytest.approx(0.2, abs=4 * deviation)


def test_the_best_items_are_the_best(rows_at_once):
    hidden, weights = draw((30, 8), 0), draw((41, 8), 1)
    weights[0] = 100.0
    exclude = torch.randint(0, 41, (30, 5), generator=torch.Generator().manual_seed(0))
    all_scores = hidden @ weights.T
    all_scores[:, 0] = -math.inf
    scores, items = top_items(hidden, weights, 7)
    assert torch.equal(items, all_scores.argsort(dim=1, descending=True)[:, :7])
    torch.testing.assert_close(scores, all_scores.gather(1, items))
    _, items = top_items(hidden, weights, 7, exclude)
    assert torch.equal(items, all_scores.scatter(1, exclude, -math.inf).argsort(dim=1, descending=True)[:, :7])


def test_no_item_where_fewer_are_left():
    scores, items = top_items(torch.ones(1, 3), torch.ones(4, 3), 9, torch.tensor([[1, 3]]))
    assert items.tolist() == [[2, 0, 0]]
    assert scores.tolist() == [[3.0, -math.inf, -math.inf]]


def test_ranks_are_the_same_under_autocast():
    """Rounded to bf16, hundreds of items would change places."""
    hidden, weights, answers = draw((500, 8), 0), draw((401, 8), 1), torch.arange(500) % 400 + 1
    expected = rank_among_all(hidden, weights, answers)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(rank_among_all(hidden, weights, answers), expected)
