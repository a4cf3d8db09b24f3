"""The operators of torch that launch the GPU kernels, without a GPU: what a compiler is told of them is so, and a layer is compiled in one piece.

By Triton's interpreter, in a process of its own (test_kernels.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from paceline.recipes.nsa.attention import SparseAttention
from paceline.recipes.nsa.kernels import chosen_attention, fast_selection, past_attention
from paceline.recipes.nsa.kernels.fast_mix import mix
from paceline.recipes.nsa.kernels.fast_path import FAST, build_fast
from paceline.recipes.nsa.kernels.tiles import Tiles
from tests.recipes.nsa.attentions import build, frame_of, make_hidden, make_positions, relative_error

# Of lanes that nobody looks at.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

POSITIONS = make_positions((18, 6), (24,))
OPERATORS = {
    0: {"cut", "cut_gradient", "range", "range_gradient", "select", "chosen", "chosen_gradient", "mix", "mix_gradient"},
    32: {"cut", "cut_gradient", "range", "range_gradient", "select", "words", "mix", "mix_gradient"},
}
"""of a layer, by how many blocks a row may have to be read by words"""


@pytest.fixture(params=OPERATORS, ids=["by blocks", "by words"])
def most_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(past_attention, "MOST_BLOCKS", request.param)
    # Some queries at a time, as long rows have it.
    monkeypatch.setattr(fast_selection, "_MOST_SCORES", 1)
    monkeypatch.setattr(chosen_attention, "_MOST_PARTS", 2**13)
    return request.param


class Calls(TorchDispatchMode):
    """Of our operators the last call of each, with what it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[OpOverload, tuple[Any, Any]] = {}

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = func(*args, **(kwargs or {}))
        if func.namespace == "paceline_nsa":
            self.seen[func] = tree_map_only(Tensor, Tensor.detach, args), given
        return given


def run(layer: SparseAttention, call: Callable[..., Tensor], positions: Tensor) -> list[Tensor]:
    """The output and all gradients."""
    hidden, upstream = (make_hidden(positions, seed=seed).float() for seed in (1, 2))
    hidden.requires_grad_()
    out = call(hidden, frame_of(positions, layer, torch.float32))
    return [out.detach(), *torch.autograd.grad(out, [hidden, *layer.parameters()], upstream)]


def test_what_a_compiler_is_told_of_each_operator_is_so(most_blocks: int) -> None:
    layer = build(2, 1, stages=FAST).float()
    with Calls() as calls:
        run(layer, layer, POSITIONS)
    assert {func._opname for func in calls.seen} == OPERATORS[most_blocks]
    for func, (args, given) in calls.seen.items():
        with torch._subclasses.FakeTensorMode() as mode:
            told = func(*tree_map_only(Tensor, mode.from_tensor, args))
        for fake, real in zip(tree_leaves(told), tree_leaves(given), strict=True):
            assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride()), func
            assert real.is_contiguous(), func
        torch.library.opcheck(func, args, test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))


@pytest.mark.usefixtures("most_blocks")
def test_a_layer_is_compiled_in_one_piece_and_computes_the_same() -> None:
    tiles = Tiles({"window_forward": {"BM": 16, "BN": 16, "num_warps": 4, "num_stages": 1}}, torch.float32)
    layer = build(2, 1, stages=build_fast(tiles)).float()
    expected = run(layer, layer, POSITIONS)
    torch._dynamo.reset()
    compiled = torch.compile(lambda *given: layer(*given), backend="aot_eager", fullgraph=True, dynamic=False)
    found = run(layer, compiled, POSITIONS)
    assert all(relative_error(*pair) < 1e-6 for pair in zip(found, expected, strict=True))


def test_gradients_have_no_gradients() -> None:
    branches = [torch.randn(1, 5, 2, 16, requires_grad=True) for _ in range(3)]
    mixed = mix(torch.rand(1, 5, 2, 3), *branches)
    (gradient, *_) = torch.autograd.grad(mixed.square().sum(), branches, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        gradient.sum().backward()
