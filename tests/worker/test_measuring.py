"""A collective that gives a wrong sum is noticed; real ranks are in tests/integration/test_probe.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from paceline.engine.ranks import Ranks
from paceline.errors import DesyncError
from paceline.worker import measuring
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


def test_what_a_backend_does_not_have_is_said_and_anything_else_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(text: str) -> None:
        def run() -> None:
            raise RuntimeError(text)

        monkeypatch.setattr(measuring, "_operations", lambda whole, part: {"reduce_scatter": run})

    collectives = _Collectives(Ranks(0, 2, torch.device("cpu"), "gloo", ""), 3, None)
    refuse("ProcessGroupGloo::reduce_scatter: unsupported device type cuda\nmore")
    (found,) = collectives.measure(["reduce_scatter"], 100)
    assert found == {
        "op": "reduce_scatter",
        "bytes": 104,
        "seconds": [],
        "refused": "ProcessGroupGloo::reduce_scatter: unsupported device type cuda",
    }
    refuse("Connection closed by peer")
    with pytest.raises(RuntimeError, match="closed by peer"):
        list(collectives.measure(["reduce_scatter"], 100))
