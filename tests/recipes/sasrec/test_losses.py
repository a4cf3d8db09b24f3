import math

import pytest
import torch
from torch.nn import functional as F

from paceline.engine.draws import mix
from paceline.recipes.sasrec import parts
from paceline.recipes.sasrec.catalogue import cross_entropy
from paceline.recipes.sasrec.config import Loss
from paceline.recipes.sasrec.losses import build_loss
from paceline.recipes.sasrec.negatives import draw_by, draw_uniform

NUM_ITEMS = 30
KEYS = mix(torch.arange(64))


def draw(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make(num_rows=64, width=6):
    """Hidden states, weights and targets, of which every fifth is none."""
    targets = torch.randint(1, NUM_ITEMS + 1, (num_rows,), generator=torch.Generator().manual_seed(2))
    targets[::5] = 0
    return draw((num_rows, width), 0).requires_grad_(), draw((NUM_ITEMS + 1, width), 1).requires_grad_(), targets


def popularity():
    """Frequencies of which the largest is 30 times the smallest."""
    counts = torch.arange(1, NUM_ITEMS + 1, dtype=torch.float64)
    return counts / counts.sum()


def even():
    return torch.full((NUM_ITEMS,), 1 / NUM_ITEMS, dtype=torch.float64)


def in_small_parts(monkeypatch):
    monkeypatch.setattr(parts, "MAX_ELEMENTS", 100)


def gradients(total, hidden, weights):
    return torch.autograd.grad(total, (hidden, weights))


def scores_of(hidden, weights, targets, negatives):
    """Of the answers (T,) and of the negatives (T, K), written out; rows without target left out."""
    keep = targets > 0
    items = torch.cat((targets[:, None], negatives.expand(len(targets), -1)), dim=1)[keep]
    scores = torch.einsum("td,tkd->tk", hidden[keep], weights[items])
    hits = items[:, 1:] == items[:, :1]
    return scores[:, 0], scores[:, 1:].masked_fill(hits, -math.inf), items[:, 1:] - 1


def softmax_by_hand(hidden, weights, targets, negatives, frequencies):
    positive, negative, items = scores_of(hidden, weights, targets, negatives)
    negative = negative - torch.log(negatives.shape[-1] * frequencies[items])
    scores = torch.cat((positive[:, None], negative), dim=1)
    return F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.int64), reduction="sum")


def bce_by_hand(hidden, weights, targets, negatives, power=1.0):
    positive, negative, _ = scores_of(hidden, weights, targets, negatives)
    return -power * positive.sigmoid().log().sum() - (1 - negative.sigmoid()).log().sum()


KINDS = [("uniform", False), ("uniform", True), ("popularity", False), ("popularity", True), ("in_batch", True)]


def name_of(kind):
    return f"{kind[0]}-{'shared' if kind[1] else 'own'}"


@pytest.fixture(params=KINDS, ids=name_of)
def case(request):
    """Settings of the loss; the frequencies to build it with, and those its negatives have; what it draws for 7 negatives."""
    kind, shared = request.param
    frequencies = (even() if shared else None) if kind == "uniform" else popularity()
    _, _, targets = make()
    if shared:
        given = draw_by(mix(torch.tensor([5])), 7, frequencies.cumsum(0))[0]
        drawn = given
    else:
        given = None
        of_targets = draw_uniform(KEYS, 7, NUM_ITEMS, targets)
        drawn = of_targets if frequencies is None else draw_by(KEYS, 7, frequencies.cumsum(0))
    effective = torch.full((NUM_ITEMS,), 1 / (NUM_ITEMS - 1)).double() if frequencies is None else frequencies
    return {"negatives": kind, "shared": shared, "num_negatives": 7}, frequencies, effective, drawn, given


@pytest.mark.parametrize("is_small", [False, True], ids=["whole", "parts"])
def test_sampled_softmax_is_what_is_written_out(case, is_small, monkeypatch):
    settings, frequencies, effective, drawn, given = case
    hidden, weights, targets = make()
    expected = softmax_by_hand(hidden, weights, targets, drawn, effective)
    if is_small:
        in_small_parts(monkeypatch)
    loss = build_loss(Loss(kind="sampled_softmax", **settings), NUM_ITEMS, frequencies)
    total = loss(hidden, weights, targets, KEYS, given)
    # The frequencies' logarithms are kept in fp32.
    torch.testing.assert_close(total, expected, rtol=1e-6, atol=0)
    for mine, theirs in zip(gradients(total, hidden, weights), gradients(expected, hidden, weights), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("is_small", [False, True], ids=["whole", "parts"])
@pytest.mark.parametrize("kind", ["bce", "gbce"])
def test_bce_is_what_is_written_out(case, kind, is_small, monkeypatch):
    settings, frequencies, _, drawn, given = case
    hidden, weights, targets = make()
    share = 7 / (NUM_ITEMS - 1)
    power = share * (0.75 * (1 - 1 / share) + 1 / share) if kind == "gbce" else 1.0
    expected = bce_by_hand(hidden, weights, targets, drawn, power)
    if is_small:
        in_small_parts(monkeypatch)
    total = build_loss(Loss(kind=kind, **settings), NUM_ITEMS, frequencies)(hidden, weights, targets, KEYS, given)
    torch.testing.assert_close(total, expected)
    for mine, theirs in zip(gradients(total, hidden, weights), gradients(expected, hidden, weights), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("kind", ["sampled_softmax", "bce", "gbce"])
@pytest.mark.parametrize("shared", [False, True])
def test_gradients_are_those_of_finite_differences(kind, shared):
    hidden, weights, targets = make(num_rows=6, width=3)
    loss = build_loss(Loss(kind=kind, shared=shared, num_negatives=5), NUM_ITEMS, even() if shared else None)
    given = torch.tensor([3, 3, 17, 30, 1]) if shared else None
    assert torch.autograd.gradcheck(lambda h, w: loss(h, w, targets, KEYS[:6], given), (hidden, weights))


@pytest.mark.parametrize("counts", ["once", "by_frequency"])
@pytest.mark.parametrize("negatives", ["uniform", "popularity", "in_batch"])
def test_every_item_as_often_as_expected_gives_the_full_loss(counts, negatives):
    """Each once, drawn evenly; or each a number of times, with frequencies to match: the correction undoes the repeats."""
    hidden, weights, targets = make()
    repeats = torch.ones(NUM_ITEMS, dtype=torch.int64) if counts == "once" else torch.arange(1, NUM_ITEMS + 1)
    given = torch.arange(1, NUM_ITEMS + 1).repeat_interleave(repeats)
    config = Loss(kind="sampled_softmax", negatives=negatives, shared=True, num_negatives=len(given))
    loss = build_loss(config, NUM_ITEMS, repeats.double() / repeats.sum())
    total, expected = loss(hidden, weights, targets, None, given), cross_entropy(hidden, weights, targets)
    torch.testing.assert_close(total, expected, rtol=1e-5, atol=0)
    for mine, theirs in zip(gradients(total, hidden, weights), gradients(expected, hidden, weights), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.fixture(params=KINDS, ids=name_of)
def kind(request):
    """The settings, and the frequencies that go with them."""
    negatives, shared = request.param
    frequencies = (even() if shared else None) if negatives == "uniform" else popularity()
    return {"kind": "sampled_softmax", "negatives": negatives, "shared": shared}, frequencies


def draw_shared(frequencies, count, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.multinomial(frequencies, count, replacement=True, generator=generator) + 1


def test_more_negatives_approach_the_full_loss(kind):
    """By about 1 / √K: at 30,000 the spread over draws is 0.15 % at most (of 12 measured); 4 times that is allowed."""
    settings, frequencies = kind
    hidden, weights, targets = make()
    expected = cross_entropy(hidden, weights, targets).item()
    errors = {}
    for count in (3, 300, 30_000):
        loss = build_loss(Loss(num_negatives=count, **settings), NUM_ITEMS, frequencies)
        given = draw_shared(frequencies, count, seed=0) if settings["shared"] else None
        errors[count] = abs(loss(hidden, weights, targets, KEYS, given).item() / expected - 1)
    assert errors[30_000] < 0.006
    assert errors[30_000] < errors[300] < errors[3]


def test_the_denominator_is_unbiased(kind):
    """Over 1,500 draws of 10 negatives for one position, its mean is the full denominator within 4 standard errors."""
    settings, frequencies = kind
    hidden, weights, _ = make()
    row, weights, answer = hidden[1:2].detach() / 2, weights.detach(), torch.tensor([25])
    scores = (row @ weights.T)[0]
    loss = build_loss(Loss(num_negatives=10, **settings), NUM_ITEMS, frequencies)
    if settings["shared"]:
        sets = draw_shared(frequencies, 15_000, seed=0).view(-1, 10)
        losses = torch.stack([loss(row, weights, answer, None, given) for given in sets])
    else:
        losses = torch.stack([loss(row, weights, answer, key[None]) for key in mix(torch.arange(1500))])
    denominators = (losses + scores[25]).exp()
    standard_error = denominators.std().item() / math.sqrt(1500)
    expected = scores[1:].exp().sum().item()
    assert denominators.mean().item() == pytest.approx(expected, abs=4 * standard_error)
    assert standard_error < 0.02 * expected


def test_items_that_are_never_drawn_are_left_out_of_the_denominator():
    hidden, weights, targets = make()
    frequencies = even()
    frequencies[20:] = 0
    frequencies /= frequencies.sum()
    config = Loss(kind="sampled_softmax", negatives="popularity", num_negatives=3000)
    total = build_loss(config, NUM_ITEMS, frequencies)(hidden, weights, targets, KEYS)
    keep = targets > 0
    scores = (hidden @ weights.T)[keep]
    drawable = torch.arange(NUM_ITEMS + 1).expand_as(scores)
    is_counted = (drawable > 0) & ((drawable <= 20) | (drawable == targets[keep][:, None]))
    expected = F.cross_entropy(scores.masked_fill(~is_counted, -math.inf), targets[keep], reduction="sum")
    assert total.item() == pytest.approx(expected.item(), rel=0.02)


@pytest.mark.parametrize("kind", ["sampled_softmax", "bce", "gbce"])
def test_only_accidental_hits_cost_nothing_but_the_answer(kind):
    hidden, weights, _ = make(num_rows=4)
    targets = torch.full((4,), 9)
    loss = build_loss(Loss(kind=kind, shared=True, num_negatives=3, calibration=0.0), NUM_ITEMS, even())
    total = loss(hidden, weights, targets, None, torch.tensor([9, 9, 9]))
    positive = hidden @ weights[9]
    expected = 0 * positive.sum() if kind == "sampled_softmax" else -positive.sigmoid().log().sum()
    torch.testing.assert_close(total, expected, atol=1e-12, rtol=1e-7)
    for mine, theirs in zip(gradients(total, hidden, weights), gradients(expected, hidden, weights), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-7)


def test_gbce_lies_between_bce_and_calibrated():
    hidden, weights, targets = make()

    def total_of(**settings):
        return build_loss(Loss(**settings), NUM_ITEMS, None)(hidden, weights, targets, KEYS)

    plain = total_of(kind="bce", num_negatives=4)
    answers = F.softplus(-(hidden * weights[targets]).sum(-1))[targets > 0].sum()
    torch.testing.assert_close(total_of(kind="gbce", num_negatives=4, calibration=0.0), plain)
    share = 4 / (NUM_ITEMS - 1)
    calibrated = total_of(kind="gbce", num_negatives=4, calibration=1.0)
    torch.testing.assert_close(calibrated, plain - (1 - share) * answers)
    # With at least as many negatives as there are other items, there is nothing to make up for.
    torch.testing.assert_close(total_of(kind="gbce", num_negatives=40), total_of(kind="bce", num_negatives=40))


@pytest.mark.parametrize("kind", ["ce", "sampled_softmax", "bce", "gbce"])
@pytest.mark.parametrize("shared", [False, True])
def test_any_split_of_the_batch_adds_up(kind, shared):
    hidden, weights, targets = make()
    loss = build_loss(Loss(kind=kind, shared=shared, num_negatives=5), NUM_ITEMS, even() if shared else None)
    given = torch.tensor([4, 8, 15, 16, 23]) if shared else None
    whole = loss(hidden, weights, targets, KEYS, given)
    pieces = zip(hidden.split(11), targets.split(11), KEYS.split(11), strict=True)
    torch.testing.assert_close(sum(loss(h, weights, t, k, given) for h, t, k in pieces), whole)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(loss(hidden[order], weights, targets[order], KEYS[order], given), whole)


@pytest.mark.parametrize("kind", ["ce", "sampled_softmax", "bce", "gbce"])
@pytest.mark.parametrize("shared", [False, True])
def test_where_there_is_no_target_there_is_no_loss_and_no_gradient(kind, shared):
    hidden, weights, targets = make()
    loss = build_loss(Loss(kind=kind, shared=shared, num_negatives=5), NUM_ITEMS, even() if shared else None)
    given = torch.tensor([4, 8, 15, 16, 23]) if shared else None
    grad_hidden, grad_weights = gradients(loss(hidden, weights, targets, KEYS, given), hidden, weights)
    assert not grad_hidden[targets == 0].any()
    assert not grad_weights[0].any()
    for num_rows in (64, 0):
        total = loss(hidden[:num_rows], weights, torch.zeros_like(targets)[:num_rows], KEYS[:num_rows], given)
        assert total == 0
        assert not any(gradient.any() for gradient in gradients(total, hidden, weights))


@pytest.mark.parametrize("kind", ["ce", "sampled_softmax", "bce", "gbce"])
@pytest.mark.parametrize("shared", [False, True])
def test_half_precision_ends_before_the_scores(kind, shared):
    hidden, weights, targets = make()
    loss = build_loss(Loss(kind=kind, shared=shared, num_negatives=5), NUM_ITEMS, even() if shared else None)
    given = torch.tensor([4, 8, 15, 16, 23]) if shared else None
    rounded = hidden.detach().bfloat16().requires_grad_()
    weights = weights.detach().float().requires_grad_()
    expected = loss(rounded.detach().float(), weights, targets, KEYS, given)
    with torch.autocast("cpu", torch.bfloat16):
        total = loss(rounded, weights, targets, KEYS, given)
    assert total.dtype == torch.float32
    assert total == expected
    grad_hidden, grad_weights = gradients(total, rounded, weights)
    assert (grad_hidden.dtype, grad_weights.dtype) == (torch.bfloat16, torch.float32)


def test_the_default_number_of_negatives_draws_that_many():
    _, weights, _ = make()
    hidden = torch.zeros(1, 6, dtype=torch.float64)
    for kind, count in (("bce", 1), ("gbce", 256)):
        loss = build_loss(Loss(kind=kind, calibration=0.0), NUM_ITEMS, None)
        # Scores of 0 cost log 2 each.
        total = loss(hidden, weights, torch.tensor([1]), KEYS[:1])
        assert total.item() == pytest.approx((1 + count) * math.log(2))


def test_a_loss_has_no_state():
    for kind in ("ce", "sampled_softmax", "bce", "gbce"):
        loss = build_loss(Loss(kind=kind, negatives="popularity"), NUM_ITEMS, popularity())
        assert not list(loss.parameters())
        assert not loss.state_dict()


@pytest.mark.parametrize(("kind", "calibration"), [("bce", 0.75), ("gbce", 0.0), ("gbce", 1.0)])
def test_told_no_of_every_other_item_once_it_is_the_loss_over_the_catalogue(kind, calibration):
    """The limit of the binary losses: all items sampled, each once; gbce's power is 1 there whatever the calibration."""
    num_items, rows = 12, 30
    hidden, weights = draw((rows, 8), 0), draw((num_items + 1, 8), 1)
    targets = torch.randint(1, num_items + 1, (rows,), generator=torch.Generator().manual_seed(2))
    config = Loss(kind=kind, num_negatives=num_items, shared=True, calibration=calibration)
    frequencies = torch.full((num_items,), 1 / num_items, dtype=torch.float64)
    loss = build_loss(config, num_items, frequencies)
    sampled = loss(hidden, weights, targets, None, torch.arange(1, num_items + 1))
    scores = hidden @ weights[1:].T
    is_answer = F.one_hot(targets - 1, num_items).to(scores.dtype)
    whole = F.binary_cross_entropy_with_logits(scores, is_answer, reduction="sum")
    torch.testing.assert_close(sampled, whole, rtol=1e-5, atol=1e-5)
