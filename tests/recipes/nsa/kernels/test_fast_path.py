"""What of it runs without a GPU; tests/gpu has the kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from paceline.recipes.nsa.kernels import fast_path
from paceline.recipes.nsa.pattern import Pattern, build_frame, one_document


@pytest.mark.parametrize(
    ("length", "block", "way"), [(2048, 64, "words"), (2049, 64, "blocks"), (512, 16, "words"), (513, 16, "blocks")]
)
def test_a_row_of_as_many_blocks_as_a_word_has_bits_is_read_by_words(
    length: int, block: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern = replace(Pattern(), selection_block=block)
    frame = fast_path.lay_out(
        build_frame(one_document(1, length, torch.device("cpu")), pattern, 16, torch.float32), pattern
    )
    monkeypatch.setattr(fast_path, "attend_past", lambda *_: "words")
    monkeypatch.setattr(fast_path, "attend_chosen", lambda *_: "blocks")
    states, blocks = torch.zeros(1, length, 1, 16), torch.zeros(1, length, 1, 2, dtype=torch.int64)
    assert fast_path.attend_selected(states, states, states, blocks, frame, pattern) == way
