"""What of it runs without a GPU; tests/gpu has the kernels."""

from __future__ import annotations

from paceline.recipes.nsa.range_attention import _share_out


def test_few_tiles_of_keys_are_shared_out_to_heads_and_spans_of_queries() -> None:
    assert _share_out(512, 6) == (1, 1), "enough tiles: no sum has to be put together"
    assert _share_out(128, 6) == (6, 2)
    assert _share_out(32, 6) == (6, 6)
    assert _share_out(1, 1) == (1, 8), "no more spans than this, however few tiles"
