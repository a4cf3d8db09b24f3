"""The kernels for Hopper without one: simulated (tests/hopper), against plain torch in float64. Planning and joining are by Triton's interpreter.

test_kernels.py runs these tests in a process of their own.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paceline.recipes.nsa import chosen_attention, fast_path, past_attention, range_attention, torch_path
from paceline.recipes.nsa.pattern import Pattern
from paceline.recipes.nsa.range_attention import Stretch, Words, build_stretch
from paceline.recipes.nsa.selection import choose_blocks
from paceline.recipes.nsa.tiles import Tiles
from tests.hopper.simulation import simulate
from tests.recipes.nsa.attentions import build, make_positions, relative_error

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
    monkeypatch.setattr(chosen_attention, "can_gather", lambda *_: True)
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
        with simulate(seed):
            found = fast_path.attend_selected(*states, blocks, frame, PATTERN)
            return [found, *torch.autograd.grad(found, states, upstream)]

    found = run(0)
    errors = [relative_error(a, b) for a, b in zip(found, expected, strict=True)]
    assert max(errors) <= LIMITS[dtype], errors
    assert all(torch.equal(a, b) for a, b in zip(found, run(1), strict=True)), "whoever went first"


def find_range(rows: list[tuple[int, ...]], branch: str) -> Stretch:
    """What queries of packed rows see in the window, of their whole past, or of compressed keys, of which there is one every 16 tokens."""
    positions = make_positions(*rows)
    length = positions.shape[1]
    t = torch.arange(length, dtype=torch.int32).expand(len(rows), -1)
    low, high, num_keys = t - positions.int(), t + 1, length
    if branch == "window":
        low = torch.maximum(low, t - 100 + 1)
    if branch == "compressed":
        low, num_keys = low // 16, length // 16
        high = torch.maximum(low, (high - 16).clamp(min=0) // 16)
    return build_stretch(low.contiguous(), high.contiguous(), num_keys)


@pytest.mark.parametrize(
    ("heads", "groups", "width", "rows", "branch", "spans"),
    [
        (6, 2, 64, [(200, 1, 79), (280,)], "window", False),
        (3, 1, 64, [(3, 290)], "past", True),
        (2, 1, 128, [(150, 1, 49)], "window", True),
        (2, 2, 64, [(130, 64, 7), (201,)], "words", False),
        (2, 1, 128, [(130, 64, 7)], "words", True),
        (2, 1, 64, [(1300,)], "compressed", True),
    ],
)
def test_gradients_of_keys(
    heads: int, groups: int, width: int, rows: list[tuple[int, ...]], branch: str, spans: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Against the formulas, with scores whole in memory; in one piece, and in several that are summed up. In fp16: what Triton's interpreter multiplies in bf16 is wrong."""
    monkeypatch.setattr(range_attention, "_ENOUGH_PROGRAMS", 2**30 if spans else 0)
    monkeypatch.setattr(range_attention, "_MANY_PROGRAMS", 24)
    stretch = find_range(rows, branch)
    B, T = stretch.low.shape
    random = torch.Generator().manual_seed(5)
    words = None
    S = stretch.since.shape[1]
    s = torch.arange(S)
    sees = ((s >= stretch.low[:, :, None]) & (s < stretch.high[:, :, None]))[:, None].expand(-1, groups, -1, -1)
    if branch == "words":
        word = torch.randint(0, 2**31, (B, groups, T), generator=random, dtype=torch.int32)
        of_block = (s - stretch.low[:, :, None].long()).clamp(min=0)[:, None] // 64
        sees = sees & ((word[..., None] >> of_block) & 1).bool()
        words = Words(word, 64)
    shapes = [(B, T, heads, width), *[(B, S, groups, width)] * 2]
    states = [torch.randn(shape, generator=random).half() for shape in shapes]
    upstream = torch.randn((B, T, heads, width), generator=random).half()
    q, k, v = (each.double().requires_grad_() for each in states)
    each_k, each_v = (each.repeat_interleave(heads // groups, 2) for each in (k, v))
    scores = torch.einsum("bthd,bshd->bhts", q, each_k) / width**0.5
    sees = sees.repeat_interleave(heads // groups, 1)
    # A query that chose none of its blocks reads nothing.
    p = torch.softmax(scores.masked_fill(~sees, -1e9), -1) * sees
    expected = torch.autograd.grad(torch.einsum("bhts,bshd->bthd", p, each_v), [q, k, v], upstream.double())
    tile = {"BM": 64, "BN": 64, "NBUF": 3 if width == 64 else 2, "num_warps": 4, "maxnreg": 128}
    given = [each.requires_grad_() for each in states]

    def run(tiles: Tiles, seed: int) -> list[Tensor]:
        with simulate(seed):
            out, _ = range_attention.attend_range(*given, stretch, "window", tiles, words)
            return list(torch.autograd.grad(out, given, upstream))

    hopper = Tiles({"window_key_gradient": tile}, torch.float16)
    found = run(hopper, 0)
    errors = [relative_error(a, b) for a, b in zip(found, expected, strict=True)]
    assert max(errors) <= LIMITS[torch.float16], errors
    assert all(torch.equal(a, b) for a, b in zip(found, run(hopper, 1), strict=True)), "whoever went first"
