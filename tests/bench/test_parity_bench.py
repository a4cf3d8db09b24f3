"""`paceline bench parity`: it finds what is wrong, and says so with its exit code."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from paceline.bench import parity
from paceline.cli import asking
from paceline.cli.main import run_command
from paceline.errors import UsageError
from paceline.recipes.nsa.torch_path import TORCH, attend_window

CASE = "group 1, packed"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As the bench has it while it compares."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def compare(case: str = CASE) -> list[dict[str, Any]]:
    return parity.compare_case(case, ["torch"], torch.device("cpu"), seed=0)


def test_what_is_right_passes() -> None:
    assert [(row["path"], row["precision"], row["ok"]) for row in compare()] == [
        ("torch", "fp64", True),
        ("torch", "fp32", True),
        ("torch", "bf16", True),
        ("torch", "fp32", True),
    ]
    assert compare()[-1]["worst"] == "selected blocks"
    assert [row["path"] for row in compare("one token")][-1] == "decode"


def test_a_window_that_is_one_too_wide_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_wide(query, keys, values, frame, pattern):
        return attend_window(query, keys, values, frame, replace(pattern, window=pattern.window + 1))

    monkeypatch.setattr(parity, "build_stages", lambda path: replace(TORCH, attend_window=too_wide))
    assert not any(row["ok"] for row in compare() if row["worst"] != "selected blocks")


@pytest.mark.parametrize("is_there", [True, False])
def test_gradients_that_are_no_numbers_or_not_there_are_found(is_there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output is right, and so is every gradient but those of what compresses."""

    class Spoilt(torch.autograd.Function):
        @staticmethod
        def forward(ctx, states):
            return states.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * math.nan

    def compress(states, compression, frame):
        found = TORCH.compress(states, compression, frame)
        return Spoilt.apply(found) if is_there else found.detach()

    monkeypatch.setattr(parity, "build_stages", lambda path: replace(TORCH, compress=compress))
    assert not any(row["ok"] for row in compare() if row["worst"] != "selected blocks")


def test_a_selection_that_is_another_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def select(query, keys, logsum, frame, pattern):
        return TORCH.select(query, -keys, logsum, frame, pattern)

    monkeypatch.setattr(parity, "build_stages", lambda path: replace(TORCH, select=select))
    (*_, of_blocks) = compare("group 1, packed")
    assert of_blocks["worst"] == "selected blocks"
    assert not of_blocks["ok"]


def test_a_row_that_there_is_no_memory_for_is_a_length_too_many() -> None:
    with pytest.raises(UsageError, match=r"no memory for a layer of 100,000,000,000,000 tokens: "):
        parity.measure(0, 10**14)


@pytest.mark.parametrize("ok", [True, False])
def test_the_command(ok: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"case": "a", "path": "torch", "precision": "fp32", "worst": "hidden", "error": 3e-6, "limit": 1e-5, "ok": ok}
    times = {"torch": {"forward_ms": 1.0, "backward_ms": 2.0, "total_ms": 3.0}}
    answer = {"device": "cpu", "torch": "2", "fast": "no GPU", "rows": [row], "length": 8, "times": times, "ok": ok}
    monkeypatch.setattr(asking, "ask_worker", lambda arguments: answer)
    assert run_command(["bench", "parity"]) == (0 if ok else 6)
    shown = capsys.readouterr()
    assert "3.0e-06" in shown.out
    assert ok or "torch in fp32, a" in shown.err
    run_command(["bench", "parity", "--json"])
    assert json.loads(capsys.readouterr().out)["rows"] == [row]
