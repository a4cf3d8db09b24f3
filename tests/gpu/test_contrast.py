"""On one NVIDIA GPU: a loss of the whole step is that of one process on a CPU, and a compiled second pass repeats the first."""

from __future__ import annotations

import pytest
import torch

from paceline.engine.ranks import Ranks
from paceline.files import read_records
from tests.engine.test_contrast import Recording, expect, train

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture
def gpu() -> Ranks:
    return Ranks(0, 1, torch.device("cuda", 0), "none", "test")


@pytest.mark.parametrize("micro_batch", [13, 5])
def test_one_gpu(tmp_path, gpu, micro_batch):
    weights, losses = expect()
    found, reported, _ = train(tmp_path, gpu, micro_batch=micro_batch)
    assert reported == pytest.approx(losses, rel=1e-4)
    for name, value in weights.items():
        torch.testing.assert_close(found[name].cpu(), value, rtol=0, atol=1e-4)


# torch's advice to use TF32, which the comparison of masks must not have.
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_second_pass_has_the_masks_of_the_first(tmp_path, gpu, compiled):
    workload = Recording()
    *_, trainer = train(tmp_path, gpu, workload, max_steps=1, accumulate=3, compile={"enabled": compiled})
    second, third, _, second_again, third_again = (rows for _, _, rows in workload.forwards[-5:])
    torch.testing.assert_close(second, second_again)
    torch.testing.assert_close(third, third_again)
    assert not [e for e in read_records(trainer._context.layout.events) if e["kind"] == "warning"]
