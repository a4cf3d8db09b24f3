"""What the kernels are told of packed documents; it is worked out anywhere."""

from __future__ import annotations

import torch

from paceline.recipes.nsa.kernels.fast_frame import lay_out
from paceline.recipes.nsa.pattern import build_frame
from tests.recipes.nsa.attentions import SMALL, make_positions


def test_a_query_sees_its_documents_past_and_a_key_is_seen_until_its_document_ends() -> None:
    positions = make_positions((3, 1, 4), (8,))
    past = lay_out(build_frame(positions, SMALL, 16, torch.float32), SMALL).past
    assert past.low.tolist() == [[0, 0, 0, 3, 4, 4, 4, 4], [0] * 8]
    assert past.high.tolist() == [list(range(1, 9))] * 2
    assert past.since.tolist() == [list(range(8))] * 2
    assert past.until.tolist() == [[3, 3, 3, 4, 8, 8, 8, 8], [8] * 8]
    assert {ends.dtype for ends in (past.low, past.high, past.since, past.until)} == {torch.int32}
