"""The losses, against plain sums."""

from __future__ import annotations

import math

import pytest
import torch

from paceline.recipes.tenrec.config import Loss
from paceline.recipes.tenrec.ranking_loss import list_losses, ranking_losses
from paceline.recipes.tenrec.retrieval_loss import in_batch_losses, pack, sampled_losses


def draw_towers(count: int, width: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    users, vectors = torch.randn(2, count, width, generator=generator).unbind()
    items = torch.randint(1, 4_000_000, (count,), generator=generator)
    return users, vectors, items, torch.rand(count, generator=generator).log()


def test_in_batch_softmax_takes_log_q_off_and_leaves_out_the_same_item() -> None:
    users, vectors, items, log_q = draw_towers(5)
    items[3] = items[1]
    losses = in_batch_losses(pack(users, vectors, items, log_q), 0.5)
    for row in range(5):
        scores = [float(users[row] @ vectors[other]) / 0.5 for other in range(5)]
        expected_counts = [4 * math.exp(log_q[other]) for other in range(5)]
        others = [other for other in range(5) if items[other] != items[row]]
        total = math.exp(scores[row]) + sum(math.exp(scores[other]) / expected_counts[other] for other in others)
        expected = math.log(total) - scores[row]
        assert float(losses[row]) == pytest.approx(expected, rel=1e-5)


def test_items_travel_whole_beside_their_vectors() -> None:
    """Neighbours in number beyond 2**24 are not one item."""
    users, vectors, _, log_q = draw_towers(2)
    items = torch.tensor([2**30 + 1, 2**30 + 2])
    losses = in_batch_losses(pack(users, vectors, items, log_q), 1.0)
    assert losses.min() > 0, "they were taken for the same item"


def test_the_order_of_rows_does_not_matter() -> None:
    rows, order = pack(*draw_towers(9)), torch.tensor([4, 2, 8, 0, 1, 7, 3, 6, 5])
    torch.testing.assert_close(in_batch_losses(rows, 0.3)[order], in_batch_losses(rows[order], 0.3))


def test_sampled_softmax_sees_its_own_item_and_what_was_drawn() -> None:
    users, vectors, items, log_q = draw_towers(8)
    items[6] = items[0]  # drawn, and the first sample's own
    losses = sampled_losses(users[:3], vectors, items, log_q, 0.5)
    for row in range(3):
        own = float(users[row] @ vectors[row]) / 0.5
        drawn = [other for other in range(3, 8) if items[other] != items[row]]
        assert len(drawn) == (4 if row == 0 else 5)
        total = math.exp(own)
        total += sum(math.exp(float(users[row] @ vectors[other]) / 0.5 - log_q[other]) / 5 for other in drawn)
        assert float(losses[row]) == pytest.approx(math.log(total) - own, rel=1e-5)


def test_log_q_makes_a_sampled_softmax_that_of_the_catalogue() -> None:
    """However unevenly items are drawn, what is learned are the true shares."""
    generator = torch.Generator().manual_seed(1)
    truth = torch.tensor([0.5, 0.3, 0.15, 0.05])
    drawn_as = torch.tensor([0.7, 0.1, 0.1, 0.1])
    scores = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.Adam([scores], 0.04)
    for _ in range(200):
        positives = torch.multinomial(truth, 16, True, generator=generator)
        drawn = torch.multinomial(drawn_as, 100, True, generator=generator)
        items = torch.cat((positives, drawn))
        vectors = torch.nn.functional.one_hot(items, 4).float()
        losses = sampled_losses(scores.expand(16, 4), vectors, items, drawn_as.log()[items], 1.0)
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
    torch.testing.assert_close(scores.detach().softmax(0), truth, atol=0.04, rtol=0)


def test_log_q_makes_an_in_batch_softmax_that_of_the_catalogue() -> None:
    """Without it, the shares of what is often in the batch would come out too small: here all alike."""
    generator = torch.Generator().manual_seed(2)
    truth = torch.tensor([0.5, 0.3, 0.15, 0.05])
    scores = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.Adam([scores], 0.04)
    for _ in range(200):
        items = torch.multinomial(truth, 48, True, generator=generator)
        vectors = torch.nn.functional.one_hot(items, 4).float()
        rows = pack(scores.expand(48, 4), vectors, items, truth.log()[items])
        optimizer.zero_grad()
        in_batch_losses(rows, 1.0).mean().backward()
        optimizer.step()
    torch.testing.assert_close(scores.detach().softmax(0), truth, atol=0.04, rtol=0)


def test_smoothing_spreads_a_share_over_what_is_listed() -> None:
    scores = torch.tensor([[1.0, 2.0, -1.0, 5.0]])
    is_positive, is_listed = torch.tensor([[False, True, False, False]]), torch.tensor([[True, True, True, False]])
    logs = scores[0, :3].log_softmax(0)
    expected = -(0.9 * logs[1] + 0.1 * logs.mean())
    torch.testing.assert_close(list_losses(scores, is_positive, is_listed, 0.1)[0], expected)


def test_actions_are_learned_from_recorded_rows_and_lists_from_sampled_ones() -> None:
    logits = torch.zeros(1, 4, 5, requires_grad=True)
    batch = {
        "places": torch.tensor([2]),
        "actions": torch.tensor([0b0101]),
        "weights": torch.tensor([[0.0, 3.0, 1.0, 0.0]]),
    }
    (losses,) = ranking_losses(logits, batch, Loss(smoothing=0.0, list_weight=1.0), mean_weight=2.0)
    losses.backward()
    assert float(losses.detach()) == pytest.approx(4 * 4 * math.log(2) / 2 + math.log(3), rel=1e-6)
    assert logits.grad is not None
    gradient = logits.grad[0]
    # Clicked and liked, not followed nor shared; the recorded negative three times.
    assert gradient[2, :4].tolist() == pytest.approx([-0.25, 0.25, -0.25, 0.25])
    assert gradient[1, :4].tolist() == pytest.approx([0.75] * 4)
    assert gradient[[0, 3], :4].abs().sum() == 0
    # Of the list the recorded one is no part.
    assert gradient[:, 4].tolist() == pytest.approx([1 / 3, 0, -2 / 3, 1 / 3])


def test_a_positive_that_was_not_clicked_is_no_answer_of_a_list() -> None:
    batch = {"places": torch.tensor([0]), "actions": torch.tensor([0b0100]), "weights": torch.tensor([[1.0, 0.0]])}
    (losses,) = ranking_losses(torch.zeros(1, 2, 5), batch, Loss(list_weight=1.0), mean_weight=1.0)
    assert float(losses) == pytest.approx(4 * math.log(2))
