"""Of tuning what needs no GPU: which candidates are measured, which are refused, and which wins; tests/gpu has the rest."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from torch import Tensor

from paceline.recipes.nsa import tile_trials, tuning
from paceline.recipes.nsa.fast_frame import lay_out
from paceline.recipes.nsa.stage_runs import Inputs, draw_inputs
from paceline.recipes.nsa.tile_store import Case
from paceline.recipes.nsa.tiles import Tile
from paceline.recipes.nsa.torch_path import TORCH
from paceline.recipes.nsa.tuning import Timer, find_fastest, measure_all
from tests.recipes.nsa.tuned import CASE

A, B, C = ({"BM": size} for size in (16, 32, 64))


def test_every_candidate_of_every_kernel_is_measured() -> None:
    times = measure_all(CASE, lambda kernel, tile: None if tile["num_stages"] == 3 else float(tile["num_warps"]))
    assert list(times) == CASE.kernels
    for kernel, tried in times.items():
        assert [tile for tile, _ in tried] == CASE.candidates(kernel)
        assert all((ms is None) == (tile["num_stages"] == 3) for tile, ms in tried)


def test_after_the_limit_only_built_in_tiles_are_measured() -> None:
    asked = []
    times = measure_all(CASE, lambda kernel, tile: asked.append((kernel, tile)) or 1.0, deadline=time.monotonic() - 1)
    assert asked == [(kernel, CASE.candidates(kernel)[0]) for kernel in CASE.kernels]
    assert times == {kernel: [(tile, 1.0)] for kernel, tile in asked}, (
        "what was not tried is not taken for what does not fit"
    )


def test_the_fastest_wins_unless_the_built_in_one_is_as_good() -> None:
    assert find_fastest([(A, 1.0), (B, 0.5), (C, 0.7)]) is B
    assert find_fastest([(A, 1.0), (B, 0.99), (C, None)]) is A, "noise"
    assert find_fastest([(A, None), (B, 3.0), (C, 2.0)]) is C, "the built-in one does not fit here"
    assert find_fastest([(A, None), (B, None)]) is A


@pytest.fixture
def inputs(monkeypatch: pytest.MonkeyPatch) -> Inputs:
    """Of a case that plain torch computes, in place of kernels; a call takes as many ms as its tile has rows."""

    class TritonError(Exception):
        pass

    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    errors = ModuleType("triton.errors")
    errors.TritonError = TritonError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton.errors", errors)
    stages = replace(TORCH, lay_out=lay_out)
    monkeypatch.setattr(tile_trials, "FAST", stages)
    monkeypatch.setattr(tuning, "_time", lambda call: call() and 1.0)
    return draw_inputs(Case(1, 64, 1, 1, 16, "float32"), stages, torch.device("cpu"))


@pytest.mark.parametrize("kernel", ["window_forward", "window_key_gradient", "select"])
def test_a_tile_that_computes_something_else_is_refused(
    kernel: str, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = tile_trials.prepare_pass
    wrong = {
        16: lambda x: x,
        32: lambda x: x,
        64: lambda x: x + x.abs().amax().clamp(min=1),
        128: lambda x: x * math.nan,
    }

    def prepare_wrong(inputs: Inputs, kernel: str, tile: Tile) -> Callable[[], list[Tensor]]:
        return lambda: [wrong[tile["BM"]](each) for each in prepare(inputs, kernel, tile)()]

    monkeypatch.setattr(tuning, "prepare_pass", prepare_wrong)
    timer = Timer(inputs, repeats=1)
    assert [timer(kernel, tile) for tile in (A, B, C)] == [1.0, 1.0, None]
    (told,) = timer.refused
    assert told.startswith(f"{kernel} 64: it does not compute what the built-in one does")
    if kernel != "select":
        assert timer(kernel, {"BM": 128}) is None, "nor what is not a number"


def test_a_tile_that_broke_its_process_is_not_run(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    prepare = tile_trials.prepare_pass
    monkeypatch.setattr(
        tuning, "prepare_pass", lambda inputs, kernel, tile: asked.append(tile) or prepare(inputs, kernel, tile)
    )
    timer = Timer(inputs, repeats=1, broken=[("window_forward", B)])
    assert [timer("window_forward", tile) for tile in (A, B)] == [1.0, None]
    assert B not in asked
    assert timer.refused == ["window_forward 32: a process that ran it broke off or hung"]


def test_a_tile_that_cannot_be_compiled_is_none_and_other_errors_are_errors(
    inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def time_with(error: Exception) -> float | None:
        def fail(*_: object) -> Callable[[], list[Tensor]]:
            raise error

        monkeypatch.setattr(tuning, "prepare_pass", fail)
        return Timer(inputs, repeats=1)("window_forward", A)

    assert time_with(sys.modules["triton.errors"].TritonError("out of resource: shared memory")) is None
    assert time_with(RuntimeError("PassManager::run failed")) is None
    with pytest.raises(RuntimeError, match="illegal memory access"):
        time_with(RuntimeError("CUDA error: an illegal memory access was encountered"))
