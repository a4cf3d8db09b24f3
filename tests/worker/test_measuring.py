"""A collective that gives a wrong sum is noticed; real ranks are in tests/integration/test_probe.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from paceline.engine.ranks import Ranks
from paceline.errors import DesyncError
from paceline.worker.measuring import _Collectives

WHOLE, PART = torch.empty(8), torch.empty(4)
RIGHT: dict[str, Callable[[], object]] = {
    "all_reduce": lambda: WHOLE.fill_(3),
    "all_gather": lambda: WHOLE.copy_(torch.tensor([1.0] * 4 + [2.0] * 4)),
    "reduce_scatter": lambda: PART.fill_(3),
}


def check(op: str, run: Callable[[], object]) -> None:
    ranks = Ranks(1, 2, torch.device("cpu"), "gloo", "")
    _Collectives(ranks, 3, None)._check(op, run, WHOLE, PART)


@pytest.mark.parametrize("op", RIGHT)
def test_a_wrong_result_is_noticed(op: str) -> None:
    check(op, RIGHT[op])
    with pytest.raises(DesyncError, match=f"{op} over gloo gave .* on rank 1"):
        check(op, lambda: None)


def test_one_wrong_number_is_enough() -> None:
    def almost() -> None:
        WHOLE.fill_(3)
        WHOLE[5] = 2

    with pytest.raises(DesyncError):
        check("all_reduce", almost)
