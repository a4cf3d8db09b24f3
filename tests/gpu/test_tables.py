"""On one NVIDIA GPU: tables train as on a CPU, repeat themselves bit for bit, and go on exactly where they stopped."""

from __future__ import annotations

import math

import pytest
import torch

from paceline.engine.ranks import Ranks
from paceline.engine.row_sums import group_rows, read_sizes, sum_groups
from paceline.files import read_records
from tests.engine.lookups import ListRegression
from tests.engine.test_tables import SAVING, expect, train

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture
def gpu() -> Ranks:
    return Ranks(0, 1, torch.device("cuda", 0), "none", "test")


@pytest.mark.parametrize("micro_batch", [13, 5])
def test_the_training_of_a_cpu(tmp_path, gpu, micro_batch):
    weights, losses = expect()
    found, reported, trainer = train(tmp_path, gpu, micro_batch=micro_batch)
    assert reported == pytest.approx(losses, rel=1e-5)
    for name, value in weights.items():
        torch.testing.assert_close(found[name].cpu(), value, rtol=0, atol=1e-5)
    (choice,) = [e for e in read_records(trainer._context.layout.events) if e.get("about") == "train.graph"]
    assert choice["effective"] is False
    assert "tables" in choice["reason"]


@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16"])
def test_the_same_bits_twice_and_after_a_resume(tmp_path, gpu, mode):
    def run(name: str, **length: int) -> dict[str, torch.Tensor]:
        (tmp_path / name).mkdir(exist_ok=True)
        sections = SAVING | {"precision": {"mode": mode, "tf32": False}}
        # Frequent numbers come hundreds of times in a step: sums by atomics would differ.
        sections["run"] = {"deterministic": True}
        # After step 3 in every run: a training ends with the best weights that it has seen.
        sections["evaluate"] = {"every_epochs": 1}
        options = {"global_batch": 400, "micro_batch": 150, "max_steps": 6} | length
        found, _, trainer = train(tmp_path / name, gpu, ListRegression(1000), sections=sections, **options)
        return found | {f"moment {key}": value.clone() for key, value in trainer._tables.moments().items()}

    try:
        once, twice = run("once"), run("twice")
        run("stopped", max_steps=3)
        resumed = run("stopped")
    finally:
        torch.use_deterministic_algorithms(False)
    for name, value in once.items():
        assert torch.equal(value, twice[name]), name
        assert torch.equal(value, resumed[name]), f"{name}, resumed"


def test_sums_have_the_same_bits_without_the_deterministic_mode(gpu):
    generator = torch.Generator(gpu.device).manual_seed(0)
    drawn = torch.rand(70_000, device=gpu.device, generator=generator)
    ids = (torch.exp(drawn * math.log(3_300_000)).long() - 1).clamp(min=0)
    ids[:10_000] = 0  # padding
    rows = torch.randn(70_000, 512, device=gpu.device, generator=generator)

    def sums() -> tuple[torch.Tensor, torch.Tensor]:
        groups = group_rows(ids)
        (size,) = read_sizes([groups])
        return sum_groups(groups, size, rows)

    found, first = sums()
    assert all(torch.equal(first, sums()[1]) for _ in range(5))
    groups = group_rows(ids.cpu())
    (size,) = read_sizes([groups])
    expected = sum_groups(groups, size, rows.cpu())
    assert torch.equal(found.cpu(), expected[0])
    torch.testing.assert_close(first.cpu(), expected[1], rtol=1e-5, atol=1e-4)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo looks at it where a graph breaks
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
def test_a_compiled_model(tmp_path, gpu):
    weights, losses = expect()
    found, reported, trainer = train(tmp_path, gpu, compile={"enabled": True})
    assert reported == pytest.approx(losses, rel=1e-4)
    for name, value in weights.items():
        torch.testing.assert_close(found[name].cpu(), value, rtol=0, atol=1e-4)
    events = list(read_records(trainer._context.layout.events))
    (choice,) = [event for event in events if event.get("about") == "train.compile.enabled"]
    assert choice["effective"] is True
    torch._dynamo.reset()
