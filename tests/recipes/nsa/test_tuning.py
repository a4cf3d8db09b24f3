"""Of tuning what needs no GPU: which candidates are measured, which wins, and who compiles what; tests/gpu has the rest."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from paceline.recipes.nsa import tuning
from paceline.recipes.nsa.fast_frame import lay_out
from paceline.recipes.nsa.stage_runs import draw_inputs
from paceline.recipes.nsa.tile_store import Case
from paceline.recipes.nsa.tiles import KERNELS
from paceline.recipes.nsa.torch_path import TORCH
from paceline.recipes.nsa.tuning import find_fastest, measure_all, share_out
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


def test_a_tile_that_cannot_be_compiled_is_none_and_other_errors_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    class TritonError(Exception):
        pass

    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    errors = ModuleType("triton.errors")
    errors.TritonError = TritonError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton.errors", errors)
    case = Case(1, 64, 1, 1, 16, "float32")
    inputs = draw_inputs(case, replace(TORCH, lay_out=lay_out), torch.device("cpu"))

    def time_with(error: Exception) -> float | None:
        def fail(call: object) -> float:
            raise error

        monkeypatch.setattr(tuning, "_time", fail)
        return tuning.time_tile(inputs, "window_forward", A, repeats=0)

    assert time_with(TritonError("out of resource: shared memory")) is None
    assert time_with(RuntimeError("PassManager::run failed")) is None
    with pytest.raises(RuntimeError, match="illegal memory access"):
        time_with(RuntimeError("CUDA error: an illegal memory access was encountered"))


def test_candidates_are_shared_out_so_that_none_is_compiled_twice() -> None:
    for processes in (1, 3, 16, 1000):
        shares = share_out(CASE, processes)
        assert len(shares) <= processes
        jobs = [(kernel, str(tile)) for share in shares for kernel, tile in share]
        assert sorted(jobs) == sorted(
            (kernel, str(tile)) for kernel in CASE.kernels for tile in CASE.candidates(kernel)
        )
        owners: dict[str, set[int]] = {}
        for number, share in enumerate(shares):
            for kernel, tile in share:
                owners.setdefault(f"{KERNELS[kernel]} {tile}", set()).add(number)
        assert all(len(numbers) == 1 for numbers in owners.values())
    assert len(share_out(CASE, 0)) == 1, "no memory for any: this process does it all"
    assert len(share_out(replace(CASE, dtype="float32"), 4)) == 4
