"""What of it runs without a GPU; tests/gpu has the kernels."""

from __future__ import annotations

import pytest
import torch

from paceline.errors import UsageError
from paceline.recipes.nsa.kernels.launching import MOST_ROWS
from paceline.recipes.nsa.kernels.range_attention import Words, _grid, _share_out, _tile
from paceline.recipes.nsa.kernels.tiles import BUILT_IN


def test_few_tiles_of_keys_are_shared_out_to_heads_and_spans_of_queries() -> None:
    assert _share_out(512, 6) == (1, 1), "enough tiles: no sum has to be put together"
    assert _share_out(128, 6) == (6, 2)
    assert _share_out(32, 6) == (6, 6)
    assert _share_out(1, 1) == (1, 8), "no more spans than this, however few tiles"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernel", ["forward", "query_gradient", "key_gradient"])
def test_with_words_a_tile_of_keys_is_no_longer_than_a_block(kernel: str, dtype: torch.dtype) -> None:
    """Or it would have keys of three blocks, and the kernels ask about two."""
    kernel, query = f"selected_past_{kernel}", torch.zeros(1, 1, 1, 64, dtype=dtype)
    free = _tile(BUILT_IN, kernel, query, None)
    for block in (16, 32, 64, 128):
        tile = _tile(BUILT_IN, kernel, query, Words(torch.zeros(1), block))
        assert tile == {**free, "BN": min(free["BN"], block)}


def test_more_rows_than_a_gpu_launches_are_refused_in_our_words() -> None:
    assert _grid(128, 64, MOST_ROWS, None) == (2, 65_535)
    assert _grid(128, 64, MOST_ROWS + 1, Words(torch.zeros(1), 64)) == (65_536, 2), "the first dimension takes more"
    with pytest.raises(UsageError, match=r"65,536 rows × heads at once, and .* take 65,535"):
        _grid(128, 64, MOST_ROWS + 1, None)
