"""Gates and what is said about them."""

from __future__ import annotations

import pytest
import torch

from paceline.recipes.nsa.gates import Gates, mix_branches, summarise


def gates_with(bias: list[float], kind: str = "sigmoid") -> Gates:
    gates = Gates(8, 2, kind)
    with torch.no_grad():
        gates.project.weight.zero_()
        gates.project.bias.copy_(torch.tensor(bias))
    return gates


def test_sigmoid_opens_each_by_itself_and_softmax_shares_out() -> None:
    hidden = torch.randn(2, 5, 8)
    each = gates_with([0, 50, -50] * 2)(hidden)
    torch.testing.assert_close(each, torch.tensor([0.5, 1.0, 0.0]).expand(2, 5, 2, 3))
    shared = gates_with([0, 50, -50] * 2, "softmax")(hidden)
    torch.testing.assert_close(shared, torch.tensor([0.0, 1.0, 0.0]).expand(2, 5, 2, 3))


@pytest.mark.parametrize("kind", ["sigmoid", "softmax"])
def test_gates_stay_wide_where_products_are_narrow(kind: str) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        gates = gates_with([0.3, -0.2, 0.1] * 2, kind)(torch.randn(2, 5, 8))
    assert gates.dtype == torch.float32
    branches = [torch.randn(2, 5, 2, 4, dtype=torch.bfloat16) for _ in range(3)]
    mixed = mix_branches(gates, *branches)
    assert mixed.dtype == torch.bfloat16
    exact = sum(gates.double()[..., i, None] * branch.double() for i, branch in enumerate(branches))
    torch.testing.assert_close(mixed.double(), exact, rtol=2**-8, atol=1e-3)


def test_what_is_said() -> None:
    even, odd = gates_with([0] * 6), gates_with([-9, -9, 9, 0, 0, 0])
    assert summarise([even, odd]) == {}, "nothing was trained yet"
    for gates in (even, odd):
        for _ in range(40):
            gates(torch.randn(3, 20, 8))
    assert summarise([even])["gate_entropy"] == pytest.approx(1)
    said = summarise([odd])
    assert list(said) == ["gate_entropy", "gate_collapsed", "gate_compressed", "gate_selected", "gate_window"]


def test_a_head_that_gave_up_branches_is_counted() -> None:
    gates = gates_with([-9, -9, 9, 0, 0, 0])
    gates(torch.randn(4, 512, 8))
    said = summarise([gates])
    assert said["gate_collapsed"] == 0.5
    assert said["gate_window"] == pytest.approx((1 + 1 / 3) / 2, abs=1e-3)
    assert said["gate_entropy"] == pytest.approx(0.5, abs=1e-2)
    with torch.no_grad():
        gates.project.bias.zero_()
    gates.eval()(torch.randn(1, 2000, 8))
    assert summarise([gates]) == said, "an evaluation is not training"


@pytest.mark.parametrize("tokens", [1, 3, 512, 1023, 1024, 1025, 5000])
def test_any_number_of_tokens_speaks_for_all_heads_and_for_nothing_else(tokens: int) -> None:
    """Neither what was there before the first forward nor what an earlier, longer one left is mixed in."""
    gates = gates_with([0] * 6)
    gates(torch.randn(1, 2000, 8))
    with torch.no_grad():
        gates.project.bias.copy_(torch.tensor([-9, -9, 9] * 2))
    for some in (gates, gates_with([-9, -9, 9] * 2)):
        some(torch.randn(1, tokens, 8))
        said = summarise([some])
        assert said["gate_collapsed"] == 1.0
        assert said["gate_window"] == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("tokens", [2, 700, 1024, 1500, 2047])
def test_the_kept_tokens_are_spread_over_all_of_them(tokens: int) -> None:
    """The first half of the tokens opens one branch, the second half another: both are heard alike."""
    gates = gates_with([-9, -9, -9] * 2)
    with torch.no_grad():
        gates.project.weight[0::3, 0] = 18
        gates.project.weight[1::3, 1] = 18
    hidden = torch.zeros(1, tokens, 8)
    hidden[:, : tokens // 2, 0] = hidden[:, tokens // 2 :, 1] = 1
    gates(hidden)
    said = summarise([gates])
    assert said["gate_compressed"] == pytest.approx(tokens // 2 / tokens, abs=2e-3)
    assert said["gate_selected"] == pytest.approx(1 - tokens // 2 / tokens, abs=2e-3)
