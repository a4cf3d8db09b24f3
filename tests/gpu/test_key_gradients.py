"""Gradients of keys by Hopper's copy engine: against the formulas in float64, and against the kernel of any GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paceline.recipes.nsa.kernels import range_attention
from paceline.recipes.nsa.kernels.hopper import has_hopper
from paceline.recipes.nsa.kernels.tiles import Tiles, built_in
from paceline.recipes.nsa.kernels.tuning import measure_difference
from tests.recipes.nsa.attentions import relative_error
from tests.recipes.nsa.kernels.ranges import BRANCHES, draw_range

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400), pytest.mark.usefixtures("backward_thread")]

LIMITS = {torch.bfloat16: 2e-2, torch.float16: 4e-3}
ROWS = {
    "long": ([(1100, 1, 700), (1801,)], False),
    "short, in spans": ([(3,) * 500 + (301,), (70,) * 24 + (121,)], True),
}


@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize(("rows", "spans"), ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize(("heads", "groups", "width"), [(12, 2, 64), (1, 1, 64), (32, 2, 128), (3, 1, 128)])
def test_keys_gradients_by_copies(
    heads: int, groups: int, width: int, dtype: torch.dtype, rows: list[tuple[int, ...]], branch: str, spans: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if not has_hopper(torch.device("cuda", 0)):
        pytest.skip("this kernel is for Hopper")
    monkeypatch.setattr(range_attention, "_ENOUGH_PROGRAMS", 2**30 if spans else 0)
    drawn = draw_range(branch, rows, heads, groups, width, dtype, "cuda")

    def run(hopper: bool) -> list[Tensor]:
        tiles = Tiles({"window_key_gradient": built_in("window_key_gradient", width, dtype, hopper=hopper)}, dtype)
        out, _ = range_attention.attend_range(*drawn.states, drawn.stretch, "window", tiles, drawn.words)
        return list(torch.autograd.grad(out, drawn.states, drawn.upstream))

    copied = run(hopper=True)
    errors = [relative_error(a, b) for a, b in zip(copied, drawn.expected, strict=True)]
    assert max(errors) <= LIMITS[dtype], errors
    again, usual = run(hopper=True), run(hopper=False)
    assert all(torch.equal(a, b) for a, b in zip(copied, again, strict=True)), "the same bits again"
    assert torch.equal(copied[0], usual[0]), "queries' gradients are none of its business"
    off = measure_difference(copied, usual)
    print(f"{off:.1e}")
    assert off < 5e-3, "tile by tile"
