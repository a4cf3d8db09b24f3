"""What is compiled has to give the same results, and to be faster; else it is not used, and says why."""

from __future__ import annotations

import shutil
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from paceline.serving import acceleration
from paceline.serving.acceleration import accelerate

BATCHES = [{"x": torch.arange(24.0).view(1, 12, 2) + shift} for shift in range(2)]


class Clock:
    """Stands still but for what programs say they take."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def take(self, seconds: float, found: torch.Tensor) -> torch.Tensor:
        self.now += seconds
        return found


CLOCK = Clock()


def slow(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return CLOCK.take(0.002, batch["x"] * 2)


@pytest.fixture(autouse=True)
def _by_this_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceleration, "time", SimpleNamespace(perf_counter=CLOCK.perf_counter))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What torch.compile gives in place of the model."""

    def use(program: Any) -> None:
        monkeypatch.setattr(acceleration.torch, "compile", lambda model, **_: program)

    return use


def test_what_is_equal_and_faster_is_used(compiled: Any) -> None:
    compiled(lambda batch: CLOCK.take(0.001, batch["x"] * 2))
    program, proof = accelerate(slow, BATCHES, "fp32", seconds=0)
    assert program is not None
    assert torch.equal(program(BATCHES[1]), slow(BATCHES[1]))
    assert (proof.is_equal, proof.max_difference, proof.same_top, proof.why) == (True, 0.0, 1.0, "")
    assert proof.speed_up == pytest.approx(2)


def test_what_differs_is_not_used(compiled: Any) -> None:
    compiled(lambda batch: -batch["x"] * 2)
    program, proof = accelerate(slow, BATCHES, "bf16", seconds=0)
    assert program is None
    assert not proof.is_equal
    assert proof.same_top < 1
    assert "differ by 2, more than 0.05" in proof.why


def test_what_is_no_number_is_not_equal(compiled: Any) -> None:
    compiled(lambda batch: batch["x"] * float("nan"))
    proof = accelerate(slow, BATCHES, "fp32", seconds=0)[1]
    assert (proof.is_equal, proof.max_difference) == (False, None)


def test_what_is_not_faster_is_not_used(compiled: Any) -> None:
    compiled(lambda batch: CLOCK.take(0.002, batch["x"] * 2))
    program, proof = accelerate(slow, BATCHES, "fp32", seconds=0)
    assert program is None
    assert proof.is_equal
    assert "it is not faster" in proof.why


def test_what_cannot_be_compiled_says_so(compiled: Any) -> None:
    def fail(batch: Any) -> Any:
        raise RuntimeError("no compiler\nand a long story")

    compiled(fail)
    program, proof = accelerate(slow, BATCHES, "fp32", seconds=0)
    assert program is None
    assert proof.why == "it cannot be compiled here: RuntimeError: no compiler"
    assert proof.speed_up == 0


class Line(nn.Module):
    def __init__(self, weight: float) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 16)
        nn.init.constant_(self.linear.weight, weight)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.linear(batch["x"]).softmax(-1).cumsum(-1) + self.linear.weight[0, 0]


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.timeout(180)
def test_each_model_and_precision_has_a_program_of_its_own() -> None:
    """Weights are constants of a program: another model of the same shapes must not be answered by it."""
    kinds = (("fp32", 1.0), ("bf16", -3.0))
    proofs = [accelerate(Line(weight), BATCHES, precision, seconds=0)[1] for precision, weight in kinds]
    assert [proof.is_equal for proof in proofs] == [True, True], proofs
