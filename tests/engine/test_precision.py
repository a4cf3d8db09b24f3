"""fp16: an overflow leaves a step out and halves the scale; a loss that is not finite, or overflows without end, is trouble."""

from __future__ import annotations

import math

import pytest
import torch

from paceline.engine.precision import Fp16
from paceline.engine.ranks import Ranks

ALONE = Ranks(0, 1, torch.device("cpu"), "none", "")
GOOD, BAD = torch.tensor(0.0), torch.tensor(1.0)


@pytest.fixture
def fp16():
    return Fp16(ALONE)


@pytest.fixture
def optimizer():
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    return torch.optim.SGD([parameter], lr=0.1, fused=True)


def value(optimizer) -> float:
    return float(optimizer.param_groups[0]["params"][0][0].detach())


def test_the_scale_of_the_loss_is_taken_back_from_the_gradients(fp16):
    scaled = fp16.scale(torch.tensor(3.0))
    assert float(scaled) == 3 * 65536
    assert float(fp16.unscale(scaled)) == 3.0


def test_an_overflow_leaves_the_step_out_and_halves_the_scale(fp16, optimizer):
    fp16.apply(optimizer, BAD)
    assert value(optimizer) == 1.0
    assert float(fp16.loss_scale) == 32768
    assert not fp16.is_trouble(torch.tensor(True), BAD), "once is normal"
    fp16.apply(optimizer, GOOD)
    assert value(optimizer) == pytest.approx(0.9)
    assert float(fp16.loss_scale) == 32768


def test_the_scale_grows_after_many_good_steps(fp16, optimizer):
    fp16._GROW_AFTER = 3
    for _ in range(7):
        fp16.apply(optimizer, GOOD)
    assert float(fp16.loss_scale) == 65536 * 4


def test_overflows_without_end_are_trouble(fp16, optimizer):
    verdicts = []
    for _ in range(20):
        fp16.apply(optimizer, BAD)
        verdicts.append(bool(fp16.is_trouble(torch.tensor(True), BAD)))
    assert verdicts == [False] * 19 + [True]


def test_a_loss_that_is_not_finite_is_trouble_at_once(fp16, optimizer):
    fp16.apply(optimizer, BAD)
    assert fp16.is_trouble(torch.tensor(False), BAD)


class OneOfTwo(Ranks):
    """The other rank's micro-batch: 1 sample that weighs 70."""

    def all_reduce(self, tensor):
        tensor += torch.tensor([70.0, 1.0])


@pytest.mark.parametrize(
    ("weight", "samples", "scale"), [(4096.0, 4, 64), (3.0, 3, 65536), (1e-9, 8, 65536), (1e60, 1, 2.0**-24)]
)
def test_the_scale_begins_by_what_a_sample_weighs(fp16, weight, samples, scale):
    fp16.weigh(torch.tensor(weight, dtype=torch.float64), samples)
    assert float(fp16.loss_scale) == scale
    fp16.weigh(torch.tensor(1.0), 1)
    assert float(fp16.loss_scale) == scale, "the first says it, once"


@pytest.mark.parametrize("weight", [0.0, math.nan, math.inf])
def test_what_weighs_nothing_or_no_number_leaves_it_to_the_next(fp16, weight):
    fp16.weigh(torch.tensor(weight), 2)
    assert float(fp16.loss_scale) == 65536
    fp16.weigh(torch.tensor(1024.0), 1)
    assert float(fp16.loss_scale) == 64


def test_all_ranks_begin_with_one_scale():
    here, dummy = (Fp16(OneOfTwo(0, 2, torch.device("cpu"), "gloo", "")) for _ in range(2))
    here.weigh(torch.tensor(58), 1)
    assert float(here.loss_scale) == 1024
    dummy.weigh(torch.tensor(0.0), 0)
    assert float(dummy.loss_scale) == 1024


def test_a_scale_of_before_samples_were_weighed_is_not_weighed_again(fp16):
    """It has come down by overflows; another mode's checkpoint has none."""
    kept = {name: tensor.clone() for name, tensor in fp16.tensors().items() if name != "weighed"}
    kept["loss_scale"].fill_(4096.0)
    fp16.load(kept)
    fp16.weigh(torch.tensor(16384.0), 1)
    assert float(fp16.loss_scale) == 4096
    after_bf16 = Fp16(ALONE)
    after_bf16.load({})
    after_bf16.weigh(torch.tensor(16384.0), 1)
    assert float(after_bf16.loss_scale) == 4


def test_a_scale_that_a_checkpoint_kept_stays_if_it_was_weighed(fp16):
    before = Fp16(ALONE)
    fork = before.tensors()
    fp16.load(fork)
    fp16.weigh(torch.tensor(4096.0), 1)
    assert float(fp16.loss_scale) == 16
    before.load(fp16.tensors())
    before.weigh(torch.tensor(2.0), 1)
    assert float(before.loss_scale) == 16
