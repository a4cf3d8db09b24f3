"""LayerNorm's kernels against torch in float64, and what training asks of them besides: the same bits again, and capture in a graph.

Without a GPU, in Triton's interpreter (pip install triton "numpy<2.4"), which numpy warns of:
    TRITON_INTERPRET=1 pytest --noconftest -W ignore::DeprecationWarning tests/gpu/test_norm_kernels.py
How long they take: pytest -s -k time tests/gpu/test_norm_kernels.py
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.recipes.sasrec.norm import Norm, fused_available, fused_norm

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
on_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="no NVIDIA GPU here")
EPSILON = 1e-5
NAMES = ("y", "d x", "d weight", "d bias")

Leaves = tuple[Tensor, Tensor, Tensor, Tensor]


def draw(*shape: int) -> Leaves:
    """x, whose mean is far from 0, weight, bias and the gradient of the result, on the CPU."""
    generator = torch.Generator().manual_seed(sum(shape))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    width = shape[-1]
    return normal(*shape) * 2 + 5, 1 + normal(width), normal(width), normal(*shape)


def run(norm: Callable[..., Tensor], leaves: Leaves, dtype: torch.dtype, device: str) -> list[Tensor]:
    """The result and the gradients of x, weight and bias."""
    *at, gradient = (leaf.to(device, dtype) for leaf in leaves)
    at = [leaf.clone().requires_grad_() for leaf in at]
    y = norm(*at)
    return [y.detach(), *torch.autograd.grad(y, at, gradient.to(y.dtype))]


def torch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias, EPSILON)


def kernel_norm(dtype: torch.dtype) -> Callable[..., Tensor]:
    return lambda x, weight, bias: fused_norm(x, weight, bias, EPSILON, dtype)


def assert_close(ours: list[Tensor], theirs: list[Tensor], value: float, gradient: float) -> None:
    for name, mine, right in zip(NAMES, ours, theirs, strict=True):
        # Rows of one number have no gradient, and no error relative to it.
        error = ((mine.cpu().double() - right).norm() / right.norm().clamp(min=1)).item()
        if mine.shape[-1] == 1:
            error /= 100  # nothing is left of such a row but rounding, divided by the root of epsilon
        assert error < (gradient if name.startswith("d ") else value), (name, error)


@pytest.mark.parametrize(
    "shape",
    [
        (1, 50),
        (7, 1),
        (300, 1),
        (7, 50),
        (70, 64),
        (9, 4, 100),
        (130, 128),
        (33, 200),
        (2, 3, 1000),
        (5, 1024),
        (64,),
        pytest.param((25_599, 1), marks=on_gpu),
        pytest.param((25_599, 50), marks=on_gpu),
        pytest.param((25_600, 64), marks=on_gpu),
        pytest.param((6_400, 4, 100), marks=on_gpu),
        pytest.param((25_599, 128), marks=on_gpu),
        pytest.param((25_599, 200), marks=on_gpu),
        pytest.param((25_599, 1000), marks=on_gpu),
    ],
)
def test_values_and_gradients_are_those_of_layer_norm(shape):
    leaves = draw(*shape)
    ours = run(kernel_norm(torch.float32), leaves, torch.float32, DEVICE)
    theirs = run(torch_norm, leaves, torch.float64, "cpu")
    assert [value.dtype for value in ours] == [torch.float32] * 4
    assert [value.shape for value in ours] == [value.shape for value in theirs]
    assert_close(ours, theirs, 1e-5, 1e-4)


@pytest.mark.parametrize("given", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32])
def test_half_the_bytes(given, stored):
    """In either dtype at either end: apart from the rounding of what is stored, the same numbers."""
    x, *others = draw(37, 50)
    leaves = (x.to(stored).float(), *others)

    def half(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = fused_norm(x.to(stored), weight, bias, EPSILON, given)
        assert y.dtype == given
        return y

    ours = run(half, leaves, torch.float32, DEVICE)
    theirs = run(torch_norm, leaves, torch.float64, "cpu")
    assert_close(ours, theirs, 1e-2, 1e-2)


def test_weights_in_half_the_bytes():
    leaves = tuple(leaf.bfloat16() for leaf in draw(37, 50))
    ours = run(kernel_norm(torch.bfloat16), leaves, torch.bfloat16, DEVICE)
    assert [value.dtype for value in ours] == [torch.bfloat16] * 4
    assert_close(ours, run(torch_norm, leaves, torch.float64, "cpu"), 1e-2, 1e-2)


def test_a_large_mean_costs_few_digits():
    x, *others = draw(40, 128)
    leaves = (x + 1000, *others)
    ours = run(kernel_norm(torch.float32), leaves, torch.float32, DEVICE)
    assert_close(ours, run(torch_norm, leaves, torch.float64, "cpu"), 1e-4, 1e-4)


def test_rows_of_one_value_are_the_bias():
    _, weight, bias, gradient = draw(6, 50)
    leaves = (torch.full((6, 50), 3.0), weight, bias, gradient)
    y, *gradients = run(kernel_norm(torch.float32), leaves, torch.float32, DEVICE)
    torch.testing.assert_close(y.cpu(), bias.expand(6, -1), rtol=0, atol=1e-3)
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_an_input_with_other_strides_and_a_gradient_that_was_expanded():
    x, weight, bias, _ = draw(20, 50)

    def strided(norm: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda x, weight, bias: norm(x.T.contiguous().T[::2], weight, bias).sum()

    leaves = (x, weight, bias, torch.tensor(1.5))
    ours = run(strided(kernel_norm(torch.float32)), leaves, torch.float32, DEVICE)
    theirs = run(strided(torch_norm), leaves, torch.float64, "cpu")
    for name, mine, right in zip(NAMES, ours, theirs, strict=True):
        torch.testing.assert_close(mine.cpu().double(), right, rtol=1e-4, atol=1e-4, msg=name)


@on_gpu
@pytest.mark.parametrize("width", [50, 128])
def test_the_same_input_gives_the_same_bits(width):
    leaves = draw(25_600, width)
    first, again = (run(kernel_norm(torch.bfloat16), leaves, torch.float32, DEVICE) for _ in range(2))
    for name, one, other in zip(NAMES, first, again, strict=True):
        assert torch.equal(one, other), name


def capture(step: Callable[[], list[Tensor]]) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    return graph, captured


@on_gpu
def test_a_captured_step_replays_to_the_same_bits():
    leaves = draw(3_200, 50)
    eager = run(kernel_norm(torch.float32), leaves, torch.float32, DEVICE)
    *at, gradient = (leaf.to(DEVICE) for leaf in leaves)
    at = [leaf.requires_grad_() for leaf in at]

    def step() -> list[Tensor]:
        y = kernel_norm(torch.float32)(*at)
        return [y, *torch.autograd.grad(y, at, gradient)]

    graph, captured = capture(step)
    for value in captured:
        value.detach().zero_()
    graph.replay()
    torch.cuda.synchronize()
    for name, one, other in zip(NAMES, captured, eager, strict=True):
        assert torch.equal(one, other), name


@on_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_dtypes_autocast_asks_for(dtype):
    norm, keeper = Norm(50).to(DEVICE), Norm(50, keeps_fp32=True).to(DEVICE)
    x = draw(7, 50)[0].to(DEVICE)
    assert norm(x).dtype == keeper(x).dtype == torch.float32
    assert norm(x.to(dtype)).dtype == keeper(x.to(dtype)).dtype == dtype
    with torch.autocast("cuda", dtype):
        assert norm(x).dtype == norm(x.to(dtype)).dtype == dtype
        assert keeper(x).dtype == keeper(x.to(dtype)).dtype == torch.float32
        with torch.autocast("cuda", enabled=False):
            assert norm(x).dtype == torch.float32


@on_gpu
def test_a_linear_layer_behind_it_trains_as_behind_layer_norm():
    x, weight, bias, _ = (leaf.to(DEVICE) for leaf in draw(70, 50))
    linear = nn.Linear(50, 50, device=DEVICE)
    results = []
    for norm in (Norm(50).to(DEVICE), nn.LayerNorm(50, device=DEVICE)):
        norm.load_state_dict({"weight": weight, "bias": bias})
        at = x.clone().requires_grad_()
        with torch.autocast("cuda", torch.bfloat16):
            y = linear(norm(at))
        results.append([y.detach(), *torch.autograd.grad(y.float().square().sum(), [at, norm.weight, norm.bias])])
    assert_close(results[0], [value.cpu().double() for value in results[1]], 1e-2, 1e-2)


@on_gpu
def test_what_the_kernels_do_not_take():
    assert fused_available(torch.zeros(3, 8, device=DEVICE))
    assert not fused_available(torch.zeros(3, 8))
    assert not fused_available(torch.zeros(0, 8, device=DEVICE))
    assert not fused_available(torch.zeros(3, 1025, device=DEVICE))
    assert not fused_available(torch.zeros(3, 8, device=DEVICE, dtype=torch.float64))
    assert Norm(1025).to(DEVICE)(torch.zeros(3, 1025, device=DEVICE)).shape == (3, 1025)
    assert Norm(8).to(DEVICE)(torch.zeros(0, 8, device=DEVICE)).shape == (0, 8)
    with pytest.raises(RuntimeError, match="normalized_shape"):
        Norm(8).to(DEVICE)(torch.zeros(3, 16, device=DEVICE))


def measure_us(norm: Callable[..., Tensor], leaves: Leaves, dtype: torch.dtype, repeats: int = 20) -> float:
    """Forward and backward, the median of ten replays of a graph, as in training: what the host needs to launch is left out."""
    *at, gradient = (leaf.to(DEVICE) for leaf in leaves)
    at, gradient = [leaf.requires_grad_() for leaf in at], gradient.to(dtype)

    def step() -> list[Tensor]:
        for _ in range(repeats):
            y = norm(*at)
            gradients = torch.autograd.grad(y, at, gradient)
        return [y, *gradients]

    graph, _ = capture(step)
    times = []
    for _ in range(10):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / repeats)
    return sorted(times)[len(times) // 2]


@on_gpu
@pytest.mark.parametrize("width", [50, 128])
def test_the_time_it_takes_is_printed(width):
    leaves = draw(25_600, width)
    torch_us = measure_us(torch_norm, leaves, torch.float32)
    ours_us = measure_us(kernel_norm(torch.float32), leaves, torch.float32)
    half_us = measure_us(kernel_norm(torch.bfloat16), leaves, torch.bfloat16)
    print(f"\n(25600, {width}), forward + backward: torch {torch_us:.1f} us, ours {ours_us:.1f}, to bf16 {half_us:.1f}")
