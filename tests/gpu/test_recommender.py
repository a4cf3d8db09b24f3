"""The recommender on a GPU: the same numbers as on the CPU, the same twice, and fit for a CUDA graph."""

import copy
import itertools

import pytest
import torch

from paceline.engine.attend import attend_by_flex, attend_by_sdpa, attend_eagerly
from tests.recipes.sasrec.recommenders import VARIANTS, build, make_batch

pytestmark = pytest.mark.gpu

CASES = pytest.mark.parametrize(
    "changes",
    [variant | {"norm": norm, "positions": where} for variant, (norm, where) in itertools.product(
        VARIANTS, (("pre", "learned"), ("post", "rotary"))
    )],
    ids=str,
)  # fmt: skip


def on_gpu(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: values.cuda() for name, values in batch.items()}


def gradients(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    model.zero_grad()
    loss = model(batch)
    loss.backward()
    return [loss.detach().cpu(), *(parameter.grad.cpu() for parameter in model.parameters())]


@CASES
def test_dense_on_the_gpu_is_packed_on_the_cpu(changes: dict[str, object]) -> None:
    model, batch = build(**changes), make_batch()
    expected = gradients(model, batch)
    other = copy.deepcopy(model).cuda()
    torch.testing.assert_close(gradients(other, on_gpu(batch)), expected, rtol=1e-3, atol=1e-3)
    with torch.no_grad():
        last = other.last_hidden(on_gpu(batch)).cpu()
        torch.testing.assert_close(last, model.last_hidden(batch), rtol=1e-3, atol=1e-3)


@CASES
def test_twice_the_same_with_deterministic_kernels(changes: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    model, batch = build(**changes).cuda(), on_gpu(make_batch((12, 5, 9) * 40))
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (gradients(model, batch) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@CASES
def test_a_step_can_be_captured_and_replayed(changes: dict[str, object]) -> None:
    model, batch = build(dropout=0.0, **changes).cuda().train(), on_gpu(make_batch())
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        for _ in range(3):
            model.zero_grad()
            model(batch).backward()
    torch.cuda.current_stream().wait_stream(side)
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        loss = model(batch)
        loss.backward()
    other = on_gpu(make_batch(seed=9))
    for name, values in other.items():
        batch[name].copy_(values)
    graph.replay()
    with torch.autocast("cuda", torch.bfloat16):
        torch.testing.assert_close(loss, model(other), rtol=1e-2, atol=1e-2)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert all(value == value for value in model.observe().values())


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch itself looks, while it compiles flex attention
@pytest.mark.parametrize("width", [5, 25, 32, 50, 64])
def test_all_kernels_agree_forward_and_backward(width: int) -> None:
    results = []
    for kernel in (attend_eagerly, attend_by_sdpa, attend_by_flex):
        random = torch.Generator("cuda").manual_seed(0)
        states = [torch.randn(2, 2, 200, width, device="cuda", generator=random, requires_grad=True) for _ in range(3)]
        mixed = kernel(*states, is_causal=True)
        mixed.square().sum().backward()
        results.append([mixed.detach(), *(state.grad for state in states)])
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=2e-2, atol=2e-2)
