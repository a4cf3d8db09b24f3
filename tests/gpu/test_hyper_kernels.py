"""mHC's kernels against the formulas in float64, and what training asks of them besides: the same bits again, and capture in a graph.

Without a GPU, in Triton's interpreter (pip install triton "numpy<2.4"), two minutes:
TRITON_INTERPRET=1 pytest --noconftest -W ignore::DeprecationWarning tests/gpu/test_hyper_kernels.py
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paceline.recipes.sasrec.hyper_ends import fused_close, fused_open
from paceline.recipes.sasrec.hyper_fused import fused_available, fused_read, fused_write

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
on_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="no NVIDIA GPU here")
EPSILON = 1e-6
NAMES = ("written", "read", "res", "d x", "d project", "d gates", "d bias", "d layer")

Leaves = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def draw(tokens: int, streams: int, width: int, sharpness: float = 1.0) -> Leaves:
    """x, project, gates, bias and the weights of a layer, on the CPU; gates and bias far from where training starts."""
    generator = torch.Generator().manual_seed(tokens * 1000 + streams * 100 + width)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    numbers = 2 * streams + streams**2
    project = normal(numbers, streams * width) / (streams * width) ** 0.5
    bias = normal(numbers)
    bias[2 * streams :] *= sharpness
    gates = torch.tensor([0.5, 0.7, 0.9])
    return normal(tokens, streams, width), project, gates, bias, normal(width, width) / width**0.5


def fused(
    x: Tensor, project: Tensor, gates: Tensor, bias: Tensor, layer: Tensor, iterations: int
) -> tuple[Tensor, ...]:
    read, mixed, post, res = fused_read(x, project, gates, bias, iterations, EPSILON)
    return fused_write(mixed, post, res, torch.tanh(read @ layer)), read, res.permute(2, 0, 1)


def formulas(
    x: Tensor, project: Tensor, gates: Tensor, bias: Tensor, layer: Tensor, iterations: int
) -> tuple[Tensor, ...]:
    """As in the paper, written without a thought to speed."""
    tokens, n, _ = x.shape
    flat = x.reshape(tokens, -1)
    raw = (flat / (flat.pow(2).mean(1, keepdim=True) + EPSILON).sqrt()) @ project.T
    pre = torch.sigmoid(gates[0] * raw[:, :n] + bias[:n])
    post = 2 * torch.sigmoid(gates[1] * raw[:, n : 2 * n] + bias[n : 2 * n])
    res = torch.exp(gates[2] * raw[:, 2 * n :] + bias[2 * n :]).reshape(tokens, n, n)
    for _ in range(iterations):
        res = res / res.sum(1, keepdim=True)
        res = res / res.sum(2, keepdim=True)
    read = torch.einsum("tn,tnd->td", pre, x)
    written = torch.einsum("tij,tjd->tid", res, x) + post[:, :, None] * torch.tanh(read @ layer)[:, None]
    return written, read, res


def run(
    connection: Callable[..., tuple[Tensor, ...]], leaves: Leaves, iterations: int, dtype: torch.dtype, device: str
) -> list[Tensor]:
    """What it computes, and the gradients of all leaves under a fixed random gradient of the result."""
    at = [leaf.clone().to(device, dtype).requires_grad_() for leaf in leaves]
    outputs = connection(*at, iterations)
    generator = torch.Generator().manual_seed(5)
    outputs[0].backward(torch.randn(outputs[0].shape, generator=generator).to(device, dtype))
    return [*(output.detach() for output in outputs), *(leaf.grad for leaf in at if leaf.grad is not None)]


def assert_matches(leaves: Leaves, iterations: int = 20) -> None:
    ours = run(fused, leaves, iterations, torch.float32, DEVICE)
    theirs = run(formulas, leaves, iterations, torch.float64, "cpu")
    for name, mine, right in zip(NAMES, ours, theirs, strict=True):
        error = ((mine.cpu().double() - right).norm() / right.norm()).item()
        assert error < (1e-4 if name.startswith("d ") else 1e-5), (name, error)


@pytest.mark.parametrize(
    ("tokens", "streams", "width"),
    [
        (1, 4, 64),
        (7, 4, 50),
        (70, 4, 200),
        (33, 2, 128),
        (40, 2, 33),
        pytest.param(25_599, 4, 128, marks=on_gpu),
        pytest.param(25_599, 4, 50, marks=on_gpu),
        pytest.param(12_801, 2, 200, marks=on_gpu),
        pytest.param(4_097, 4, 512, marks=on_gpu),
    ],
)
def test_values_and_gradients_are_those_of_the_formulas(tokens, streams, width):
    assert_matches(draw(tokens, streams, width))


@pytest.mark.parametrize("iterations", [1, 3, 50])
def test_the_gradient_goes_through_each_round_of_sinkhorn(iterations):
    assert_matches(draw(9, 4, 32, sharpness=3), iterations)


def test_sharp_mappings_stay_finite():
    assert_matches(draw(9, 4, 32, sharpness=12))


def test_rows_sum_to_one_and_columns_nearly():
    _, project, gates, _, _ = draw(65, 4, 64)
    bias = torch.cat((torch.zeros(8), (torch.eye(4) * 3.3).flatten()))
    streams = torch.randn(65, 4, 64, generator=torch.Generator().manual_seed(1))
    res = fused_read(*(value.to(DEVICE) for value in (streams, project, gates * 0.01, bias)), 20, EPSILON)[3]
    assert (res.sum(1) - 1).abs().max() < 1e-6
    assert (res.sum(0) - 1).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("tokens", "streams", "width", "dtype"),
    [
        (37, 4, 64, torch.float16),
        # Triton's interpreter multiplies the bits of bf16 as if they were whole numbers.
        pytest.param(37, 4, 64, torch.bfloat16, marks=on_gpu),
        pytest.param(70, 4, 200, torch.bfloat16, marks=on_gpu),
        pytest.param(40, 2, 33, torch.bfloat16, marks=on_gpu),
        pytest.param(25_599, 4, 128, torch.bfloat16, marks=on_gpu),
        pytest.param(12_801, 2, 50, torch.bfloat16, marks=on_gpu),
    ],
)
def test_streams_in_half_the_bytes(tokens, streams, width, dtype):
    """Stored in half precision, computed in fp32: apart from the rounding of what is stored, the same numbers."""
    x, *parameters = draw(tokens, streams, width)
    x = x.to(dtype)

    def half(
        x: Tensor, project: Tensor, gates: Tensor, bias: Tensor, layer: Tensor, iterations: int
    ) -> tuple[Tensor, ...]:
        read, mixed, post, res = fused_read(x.to(dtype), project, gates, bias, iterations, EPSILON)
        assert read.dtype == dtype
        written = fused_write(mixed, post, res, torch.tanh(read.float() @ layer).to(dtype))
        return written.float(), read, res.permute(2, 0, 1)

    ours = run(half, (x, *parameters), 20, torch.float32, DEVICE)
    theirs = run(formulas, (x, *parameters), 20, torch.float64, "cpu")
    for name, mine, right in zip(NAMES, ours, theirs, strict=True):
        error = ((mine.cpu().double() - right).norm() / right.norm()).item()
        assert error < (1e-5 if name == "res" else 1e-2), (name, error)


def test_streams_that_were_expanded_and_a_gradient_that_was():
    x, *parameters = draw(20, 4, 64)

    def expanded(connection: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
        def of_one(x: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
            written, *rest = connection(x[:, :1].expand(-1, 4, -1), *others)
            return (written.sum(1), *rest)

        return of_one

    ours = run(expanded(fused), (x, *parameters), 20, torch.float32, DEVICE)
    theirs = run(expanded(formulas), (x, *parameters), 20, torch.float64, "cpu")
    for name, mine, right in zip(NAMES, ours, theirs, strict=True):
        torch.testing.assert_close(mine.cpu().double(), right, rtol=1e-3, atol=1e-4, msg=name)


def pass_ends(tokens: int, streams: int, width: int, dtype: torch.dtype, is_fused: bool) -> list[Tensor]:
    """Streams opened and, pulled apart, closed again; of the fused kernels, or of the formulas in float64: values and gradients."""
    generator = torch.Generator().manual_seed(tokens + streams + width)
    shapes = (tokens, width), (streams, width), (tokens, streams, width), (streams,), (tokens, width)
    device, exact = (DEVICE, torch.float32) if is_fused else ("cpu", torch.float64)
    hidden, offset, apart, weight, gradient = (
        torch.randn(shape, generator=generator).to(device, exact) for shape in shapes
    )
    leaves = [leaf.requires_grad_() for leaf in (hidden, offset, weight)]
    opened = fused_open(hidden, offset, dtype) if is_fused else hidden[:, None] + offset
    x = opened * (1 + apart**2).to(opened.dtype)
    closed = fused_close(x, weight) if is_fused else torch.einsum("n,tnd->td", weight, x)
    return [opened.detach(), closed.detach(), *torch.autograd.grad(closed, leaves, gradient.to(closed.dtype))]


@pytest.mark.parametrize(
    ("tokens", "streams", "width"),
    [(1, 4, 64), (37, 2, 50), (19, 4, 200), pytest.param(25_599, 4, 128, marks=on_gpu)],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_streams_begin_and_end_as_the_formulas_say(tokens, streams, width, dtype, tolerance):
    ours = pass_ends(tokens, streams, width, dtype, is_fused=True)
    assert ours[0].dtype == ours[1].dtype == dtype
    theirs = pass_ends(tokens, streams, width, dtype, is_fused=False)
    for name, mine, right in zip(("opened", "closed", "d hidden", "d offset", "d weight"), ours, theirs, strict=True):
        error = ((mine.cpu().double() - right).norm() / right.norm()).item()
        assert error < tolerance, (name, error)


@on_gpu
def test_the_same_input_gives_the_same_bits():
    leaves = draw(25_600, 4, 128)
    first, again = (run(fused, leaves, 20, torch.float32, DEVICE) for _ in range(2))
    for name, one, other in zip(NAMES, first, again, strict=True):
        assert torch.equal(one, other), name
    first, again = (pass_ends(25_600, 4, 128, torch.float32, is_fused=True) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


@on_gpu
def test_a_captured_step_replays_to_the_same_bits():
    leaves = draw(3_200, 4, 64)
    eager = run(fused, leaves, 20, torch.float32, DEVICE)
    at = [leaf.clone().to(DEVICE).requires_grad_() for leaf in leaves]
    gradient = torch.randn(at[0].shape, generator=torch.Generator().manual_seed(5)).to(DEVICE)

    def step() -> list[Tensor]:
        outputs = fused(*at, 20)
        return [*outputs, *torch.autograd.grad(outputs[0], at, gradient)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for value in captured:
        value.detach().zero_()
    graph.replay()
    torch.cuda.synchronize()
    for name, one, other in zip(NAMES, captured, eager, strict=True):
        assert torch.equal(one, other), name


@pytest.mark.parametrize("streams", [2, 4])
def test_extreme_logits_are_no_division_by_nothing(streams):
    """Entries that would vanish count as the lowest that does not, and have no gradient."""
    x, project, gates, bias, layer = draw(7, streams, 50)
    bias[2 * streams :] = torch.linspace(-200, 200, streams**2)
    at = [leaf.to(DEVICE).requires_grad_() for leaf in (x, project, gates, bias, layer)]
    written, _, res = fused(*at, 20)
    torch.testing.assert_close(res.sum(2), torch.ones_like(res.sum(2)))
    gradients = torch.autograd.grad(written.sum(), at)
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert gradients[3][2 * streams] == 0, "400 below the largest"


@on_gpu
def test_what_the_kernels_do_not_take():
    assert fused_available(torch.zeros(3, 4, 8, device=DEVICE))
    assert not fused_available(torch.zeros(3, 4, 8))
    assert not fused_available(torch.zeros(3, 3, 8, device=DEVICE))
    assert not fused_available(torch.zeros(0, 4, 8, device=DEVICE))
    assert not fused_available(torch.zeros(3, 4, 8, device=DEVICE, dtype=torch.float64))
