"""The sasrec losses on one NVIDIA GPU: the CPU's negatives and numbers, within a CUDA graph, and in a fixed order where asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from paceline.engine.draws import mix
from paceline.recipes.sasrec.catalogue import rank_among_all
from paceline.recipes.sasrec.config import Loss
from paceline.recipes.sasrec.losses import build_loss
from paceline.recipes.sasrec.negatives import draw_by, draw_uniform

pytestmark = pytest.mark.gpu

NUM_ITEMS, NUM_ROWS, WIDTH = 3416, 6400, 50
KINDS = [("ce", False), ("sampled_softmax", False), ("sampled_softmax", True), ("bce", False), ("gbce", True)]


def make(kind: str, shared: bool, device: str) -> tuple[torch.nn.Module, list[torch.Tensor | None]]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(NUM_ROWS, WIDTH, generator=generator)
    weights = torch.randn(NUM_ITEMS + 1, WIDTH, generator=generator) * 0.1
    targets = torch.randint(0, NUM_ITEMS + 1, (NUM_ROWS,), generator=generator)
    negatives = torch.randint(1, NUM_ITEMS + 1, (256,), generator=generator).to(device) if shared else None
    frequencies = torch.full((NUM_ITEMS,), 1 / NUM_ITEMS, dtype=torch.float64) if shared else None
    loss = build_loss(Loss(kind=kind, shared=shared, num_negatives=None), NUM_ITEMS, frequencies).to(device)
    leaves = [tensor.to(device).requires_grad_() for tensor in (hidden, weights)]
    return loss, [*leaves, targets.to(device), mix(torch.arange(NUM_ROWS)).to(device), negatives]


def gradients(loss: torch.nn.Module, arguments: list) -> list[torch.Tensor]:
    total = loss(*arguments)
    return [total.detach(), *torch.autograd.grad(total, arguments[:2])]


@pytest.mark.parametrize(("kind", "shared"), KINDS)
def test_the_same_as_on_a_cpu(kind: str, shared: bool) -> None:
    here, there = gradients(*make(kind, shared, "cpu")), gradients(*make(kind, shared, "cuda"))
    for mine, theirs in zip(there, here, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("kind", "shared"), KINDS)
@pytest.mark.parametrize("is_deterministic", [False, True])
def test_in_a_cuda_graph(kind: str, shared: bool, is_deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    loss, arguments = make(kind, shared, "cuda")
    torch.use_deterministic_algorithms(is_deterministic)
    try:
        expected = gradients(loss, arguments)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            gradients(loss, arguments)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = gradients(loss, arguments)
        graph.replay()
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(
                mine, theirs, rtol=0 if is_deterministic else 1e-5, atol=0 if is_deterministic else 1e-5
            )
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_same_negatives_as_on_a_cpu() -> None:
    keys, answers = mix(torch.arange(10_000)), torch.arange(10_000) % 1000 + 1
    cumulative = torch.rand(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).cumsum(0)
    there = keys.cuda()
    assert torch.equal(mix(there).cpu(), mix(keys))
    assert torch.equal(draw_uniform(there, 8, 1000, answers.cuda()).cpu(), draw_uniform(keys, 8, 1000, answers))
    assert torch.equal(draw_by(there, 8, cumulative.cuda()).cpu(), draw_by(keys, 8, cumulative))


@pytest.fixture
def allow_tf32() -> Iterator[Callable[[bool], None]]:
    before = torch.backends.cuda.matmul.allow_tf32
    yield lambda allowed: setattr(torch.backends.cuda.matmul, "allow_tf32", allowed)
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("num_items", [100, 3416, 4099])
def test_a_constant_model_scores_nothing(num_items: int, tf32: bool, allow_tf32: Callable[[bool], None]) -> None:
    allow_tf32(tf32)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(500, 50, generator=generator).cuda()
    weights = torch.randn(1, 50, generator=generator).cuda().expand(num_items + 1, -1).contiguous()
    answers = torch.randint(1, num_items + 1, (500,), generator=generator).cuda()
    assert (rank_among_all(hidden, weights, answers) == num_items - 1).all()
