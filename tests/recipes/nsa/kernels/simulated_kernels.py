"""The kernels for Hopper without one: simulated (tests/hopper), against plain torch in float64. Planning and joining are by Triton's interpreter.

test_kernels.py runs these tests in a process of their own.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paceline.recipes.nsa import torch_path
from paceline.recipes.nsa.kernels import chosen_attention, fast_path, past_attention, range_attention
from paceline.recipes.nsa.kernels.tiles import Tiles, built_in
from paceline.recipes.nsa.pattern import Pattern
from paceline.recipes.nsa.selection import choose_blocks
from tests.hopper.simulation import simulate
from tests.recipes.nsa.attentions import build, make_positions, relative_error
from tests.recipes.nsa.kernels.ranges import draw_range

# Of lanes that nobody looks at.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

LIMITS = {torch.bfloat16: 1e-2, torch.float16: 2e-3}
PATTERN = Pattern(selected=4)


@pytest.mark.parametrize(
    ("heads", "groups", "width", "dtype", "rows", "parts"),
    [
        (12, 2, 64, torch.bfloat16, [(200, 1, 50)], 2**33),
        (5, 1, 64, torch.float16, [(3,) * 30 + (70, 41)], 2**33),
        (16, 1, 128, torch.bfloat16, [(130, 9, 5, 3, 2, 1)], 2**33),
        (12, 2, 64, torch.bfloat16, [(80,), (50, 30)], 2**17),
    ],
)
def test_chosen_blocks(
    heads: int, groups: int, width: int, dtype: torch.dtype, rows: list[tuple[int, ...]], parts: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(past_attention, "MOST_BLOCKS", 0)
    monkeypatch.setattr(chosen_attention, "_MOST_PARTS", parts)
    monkeypatch.setattr(chosen_attention, "has_hopper", lambda device: True)
    positions = make_positions(*rows)
    length = positions.shape[1]
    frame = build(heads, groups, width, PATTERN, stages=fast_path.FAST).build_frame(positions, torch.float32)
    random = torch.Generator().manual_seed(11)
    scores = torch.rand((len(rows), groups, length, PATTERN.num_selection(length)), generator=random)
    blocks = choose_blocks(scores, positions, PATTERN)
    shapes = [(len(rows), length, count, width) for count in (heads, groups, groups, heads)]
    *given, upstream = (torch.randn(shape, generator=random).to(dtype) for shape in shapes)
    states = [each.requires_grad_() for each in given]
    exact = [each.detach().double().requires_grad_() for each in states]
    wanted = torch_path.attend_selected(*exact, blocks, frame, PATTERN)
    expected = [wanted, *torch.autograd.grad(wanted, exact, upstream.double())]

    def run(seed: int) -> list[Tensor]:
        with simulate(seed) as launched:
            found = fast_path.attend_selected(*states, blocks, frame, PATTERN)
            given = [found, *torch.autograd.grad(found, states, upstream)]
        # Those of any GPU would give the same, by Triton's interpreter.
        assert launched == {"nsa_chosen_gather_forward_kernel", "nsa_chosen_gather_gradient_kernel"}
        return given

    found = run(0)
    errors = [relative_error(a, b) for a, b in zip(found, expected, strict=True)]
    assert max(errors) <= LIMITS[dtype], errors
    assert all(torch.equal(a, b) for a, b in zip(found, run(1), strict=True)), "whoever went first"


@pytest.mark.parametrize(
    ("heads", "groups", "width", "rows", "branch", "spans"),
    [
        (6, 2, 64, [(200, 1, 79), (280,)], "window", False),
        (3, 1, 64, [(3, 290)], "past", True),
        (2, 1, 128, [(150, 1, 49)], "window", True),
        (2, 2, 64, [(130, 64, 7), (201,)], "words", False),
        (2, 1, 128, [(130, 64, 7)], "words", True),
        (2, 1, 64, [(1300,)], "compressed", True),
        # Tiles of keys that begin in the middle of blocks.
        (3, 1, 64, [(3, 290)], "words", False),
    ],
)
def test_gradients_of_keys(
    heads: int, groups: int, width: int, rows: list[tuple[int, ...]], branch: str, spans: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Against the formulas, with scores whole in memory; in one piece, and in several that are summed up. In fp16: what Triton's interpreter multiplies in bf16 is wrong."""
    monkeypatch.setattr(range_attention, "_ENOUGH_PROGRAMS", 2**30 if spans else 0)
    monkeypatch.setattr(range_attention, "_MANY_PROGRAMS", 24)
    monkeypatch.setattr(range_attention, "has_hopper", lambda device: True)
    drawn = draw_range(branch, rows, heads, groups, width, torch.float16)
    tile = built_in("window_key_gradient", width, torch.float16, hopper=True)

    def run(seed: int) -> list[Tensor]:
        with simulate(seed) as launched:
            tiles = Tiles({"window_key_gradient": tile}, torch.float16)
            out, _ = range_attention.attend_range(*drawn.states, drawn.stretch, "window", tiles, drawn.words)
            gradients = list(torch.autograd.grad(out, drawn.states, drawn.upstream))
        assert launched == {"nsa_range_copied_key_gradient_kernel"}
        return gradients

    found = run(0)
    errors = [relative_error(a, b) for a, b in zip(found, drawn.expected, strict=True)]
    assert max(errors) <= LIMITS[torch.float16], errors
    assert all(torch.equal(a, b) for a, b in zip(found, run(1), strict=True)), "whoever went first"
