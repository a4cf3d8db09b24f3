import pytest
import torch

from paceline.recipes.sasrec.sinkhorn import sinkhorn


def test_rows_sum_to_one_whatever_the_logits() -> None:
    logits = torch.randn(50, 4, 4, generator=torch.Generator().manual_seed(0)) * 100
    for iterations in (1, 20):
        res = sinkhorn(logits, iterations)
        torch.testing.assert_close(res.sum(2), torch.ones(50, 4), rtol=0, atol=1e-6)
        assert res.isfinite().all()


def test_columns_come_closer_with_iterations() -> None:
    logits = torch.randn(50, 4, 4, generator=torch.Generator().manual_seed(0))
    deviations = [(sinkhorn(logits, iterations).sum(1) - 1).abs().max() for iterations in (1, 3, 10, 20)]
    assert deviations == sorted(deviations, reverse=True)
    assert deviations[-1] < 1e-3 < 0.1 < deviations[0]


def test_sinkhorn_by_hand() -> None:
    """exp gives 1 3 / 1 1; columns: 1/2 3/4 / 1/2 1/4; rows: 2/5 3/5 / 2/3 1/3."""
    logits = torch.tensor([[[1.0, 3.0], [1.0, 1.0]]]).log()
    torch.testing.assert_close(sinkhorn(logits, 1), torch.tensor([[[0.4, 0.6], [2 / 3, 1 / 3]]]))


def normalise_in_turn(logits: torch.Tensor, iterations: int) -> torch.Tensor:
    """The definition, for autograd to go through."""
    matrix = logits.exp()
    for _ in range(iterations):
        matrix = matrix / matrix.sum(1, keepdim=True)
        matrix = matrix / matrix.sum(2, keepdim=True)
    return matrix


@pytest.mark.parametrize("iterations", [1, 2, 20])
@pytest.mark.parametrize("streams", [1, 2, 4, 7])
def test_values_and_gradients_are_those_of_the_definition(iterations: int, streams: int) -> None:
    random = torch.Generator().manual_seed(streams)
    logits = torch.randn(30, streams, streams, dtype=torch.float64, generator=random, requires_grad=True)
    towards = torch.randn(30, streams, streams, dtype=torch.float64, generator=random)
    result, expected = sinkhorn(logits, iterations), normalise_in_turn(logits, iterations)
    torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-12)
    gradients = [torch.autograd.grad(values, logits, towards)[0] for values in (result, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)
