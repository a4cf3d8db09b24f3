"""The model as a whole: its size, its loss, its gradients."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from paceline.engine.recomputation import recompute_blocks
from paceline.recipes.nsa.attention import Shape
from paceline.recipes.nsa.batch import NO_LABEL
from paceline.recipes.nsa.block import swiglu_width
from paceline.recipes.nsa.model import LanguageModel, count_parameters
from paceline.recipes.nsa.torch_path import TORCH
from paceline.telemetry.events import QuietLog
from tests.recipes.nsa.attentions import SMALL, make_positions

VOCABULARY = 50


def build(kernel: str | None = None) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(VOCABULARY, 2, Shape(32, 4, 2, 8, SMALL), 64, stages=TORCH, kernel=kernel)


def make_batch() -> dict[str, torch.Tensor]:
    positions = make_positions((50, 40), (90,)).int()
    tokens = torch.randint(VOCABULARY, (2, 90), generator=torch.Generator().manual_seed(0))
    labels = tokens.roll(-1, 1)
    labels[0, 49] = labels[:, 89] = NO_LABEL
    return {"input_ids": tokens, "labels": labels, "positions": positions}


def count(kernel: str | None) -> dict[str, int]:
    with torch.device("meta"):
        model = LanguageModel(50_257, 12, Shape(768, 12, 2, 64), swiglu_width(768), stages=TORCH, kernel=kernel)
    return count_parameters(model)


def test_the_125m_shape_counted_by_hand() -> None:
    dense = count("sdpa")
    assert dense["embedding"] == 50_257 * 768
    assert dense["attention"] == 12 * (768 * 768 + 768 * 256 + 768 * 768)
    assert dense["feed_forward"] == 12 * 3 * 768 * 2048
    assert dense["norms"] == (2 * 12 + 1) * 768
    assert dense["total"] == 111_754_752
    sparse = count(None)
    assert sparse["attention"] == 12 * (768 * 768 + 768 * 6 * 128 + 768 * 768)
    assert sparse["gates"] == 12 * (768 + 1) * 36
    assert sparse["compression"] == 12 * 2 * (32 * 64 + (32 * 64 + 1) * 128 + 128 * 64)
    assert sparse["total"] == 123_345_840


def test_the_loss_is_a_sum_over_labels_and_starts_near_chance() -> None:
    batch = make_batch()
    for kernel in (None, "sdpa"):
        model = build(kernel)
        per_label = model(batch).item() / (2 * 90 - 3)
        assert abs(per_label - torch.tensor(float(VOCABULARY)).log().item()) < 0.2
        losses, is_right = model.score(batch)
        assert losses.shape == is_right.shape == (2, 90)
        torch.testing.assert_close(losses.sum(), model(batch))


def test_every_parameter_learns() -> None:
    for kernel in (None, "sdpa"):
        model = build(kernel)
        model(make_batch()).backward()
        without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
        assert without == []


def test_computing_blocks_again_changes_no_bit() -> None:
    batch, gradients = make_batch(), []
    for is_again in (False, True):
        model = build()
        if is_again:
            recompute_blocks(model, QuietLog())
        model(batch).backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_gates_are_observed_after_training_only() -> None:
    model = build()
    assert model.observe() == {}
    model(make_batch())
    assert abs(model.observe()["gate_entropy"] - 1) < 1e-6
    assert build("sdpa").observe() == {}


def test_documents_of_a_batch_do_not_touch() -> None:
    """The loss of a row is that of its documents alone."""
    batch, model = make_batch(), build().double()
    losses, _ = model.score(batch)
    for part in (slice(0, 50), slice(50, 90)):
        alone = {name: values[:1, part] for name, values in batch.items()}
        torch.testing.assert_close(model.score(alone)[0], losses[:1, part])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_the_compiler_goes_around_stages_that_are_marked() -> None:
    """The same loss and gradients; what is compiled begins anew behind them."""
    batch, num_graphs = make_batch(), []
    for is_marked in (False, True):
        torch.manual_seed(0)
        model = LanguageModel(VOCABULARY, 2, Shape(32, 4, 2, 8, SMALL), 64, stages=TORCH, is_marked=is_marked)
        expected = model(batch)
        wanted = torch.autograd.grad(expected, list(model.parameters()))
        torch._dynamo.reset()
        graphs = CompileCounterWithBackend("aot_eager")
        found = torch.compile(lambda given, model=model: model(given), backend=graphs, dynamic=False)(batch)
        num_graphs.append(graphs.frame_count)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found, list(model.parameters())), wanted)
    assert num_graphs[1] >= num_graphs[0] + 2, "each attention is a break"


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_layers_are_compiled_once_and_not_again_for_the_second_step() -> None:
    """What gates keep for whoever looks has its place before the first forward, or the second would meet another model."""
    batch, model = make_batch(), build()
    torch._dynamo.reset()
    graphs = CompileCounterWithBackend("eager")
    for block in model.blocks:
        block.compile(backend=graphs, dynamic=False)
    model.train()
    model(batch)
    first = graphs.frame_count
    assert first > 0
    model(batch)
    assert graphs.frame_count == first
    assert model.observe()["gate_entropy"] > 0
