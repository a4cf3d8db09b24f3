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
import torch._dynamo  # which the first gradient imports, and which would find no Triton in what stands for it here
from torch import Tensor

from paceline.recipes.nsa.kernels import tile_trials, tuning
from paceline.recipes.nsa.kernels.fast_frame import lay_out
from paceline.recipes.nsa.kernels.stage_runs import Inputs, draw_inputs
from paceline.recipes.nsa.kernels.tile_store import Case
from paceline.recipes.nsa.kernels.tile_trials import Tried
from paceline.recipes.nsa.kernels.tiles import Tile, describe
from paceline.recipes.nsa.kernels.tuning import Timer, find_fastest, measure_all, measure_difference
from paceline.recipes.nsa.torch_path import TORCH
from tests.recipes.nsa.kernels.tuned import CASE, PLACE

A, B, C, D, E, F = ({"BM": size} for size in (16, 32, 64, 128, 256, 512))


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
    """Of a case that plain torch computes, in place of kernels; every call takes 1 ms."""

    class TritonError(Exception):
        pass

    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    errors = ModuleType("triton.errors")
    errors.TritonError = TritonError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton.errors", errors)
    stages = replace(TORCH, lay_out=lay_out)
    monkeypatch.setattr(tile_trials, "FAST", stages)
    monkeypatch.setattr(tuning, "_time", lambda call: (1.0, call()))
    return draw_inputs(Case(2, 3000, 4, 2, 16, "float32"), stages, torch.device("cpu"))


def spoil(monkeypatch: pytest.MonkeyPatch, change: Callable[[Tile, int, Tensor], Tensor]) -> None:
    """What a tile's n-th call gives."""
    calls: list[Tile] = []

    def prepare(inputs: Inputs, kernel: str, tile: Tile) -> Callable[[], list[Tensor]]:
        calls.append(tile)
        number = calls.count(tile)
        return lambda: [change(tile, number, each.clone()) for each in tile_trials.prepare_pass(inputs, kernel, tile)()]

    monkeypatch.setattr(tuning, "prepare_pass", prepare)


def shift(tile: Tile, number: int, found: Tensor) -> Tensor:
    """Of C all is off; of D one tile of one head; of E the last call is; F is not a number in one place."""
    if tile is C or (tile is E and number == 3):
        found += 1
    if tile is D:
        found[1, 1200:1264, 1] = found[1, 1200:1264, 1].flip(0)
    if tile is F and found.is_floating_point():
        found[0, 7, 1, 3] = math.nan
    return found


@pytest.mark.parametrize("kernel", ["window_forward", "window_key_gradient", "select"])
def test_a_tile_that_computes_something_else_is_refused(
    kernel: str, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, shift)
    timer = Timer(inputs, repeats=2)
    wrong = [C, E] if kernel == "select" else [C, D, E, F]
    assert [timer(kernel, tile) for tile in (A, B, *wrong)] == [1.0, 1.0, *[None] * len(wrong)]
    assert [told.partition(": off")[0] for told in timer.refused] == [
        f"{kernel} {describe(tile)}: it does not compute what 16 does" for tile in wrong
    ]


def test_a_kernel_for_hopper_is_compared_with_that_of_any_gpu(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it is the built-in one: where a compiler got it wrong, the others are right."""
    kernel, case = "window_key_gradient", replace(CASE, hopper=True)
    copied, other = case.candidates(kernel)[:2]
    usual = CASE.candidates(kernel)[0]
    assert "NBUF" in copied
    spoil(monkeypatch, lambda tile, number, found: 2 * found if tile == copied else found)
    timer = Timer(replace(inputs, case=case), repeats=1)
    assert [timer(kernel, tile) for tile in (copied, other)] == [None, 1.0]
    (refused,) = timer.refused
    assert refused.startswith(f"{kernel} {describe(copied)}: it does not compute what {describe(usual)} does: off by")
    timer = Timer(replace(inputs, case=case), repeats=1, outcomes=[((kernel, usual), "it hung")])
    assert timer(kernel, copied) == 1.0, "there is nothing else to hold it to"


def test_a_difference_is_weighed_by_what_it_is_a_difference_of() -> None:
    torch.manual_seed(0)
    usual = torch.randn(1, 640, 2, 16)
    usual[:, :64] *= 50
    rounded = usual * (1 + 0.005 * torch.randn_like(usual))
    assert measure_difference([rounded], [usual]) < 0.01, (
        "the first keys' gradients are large, and so is their rounding"
    )
    wrong = usual.clone()
    wrong[:, 64:128, 1] = 0
    assert measure_difference([wrong], [usual]) > 0.05, "of the others a tile that is not there shows"


def test_without_the_built_in_one_there_is_nothing_to_compare_with(
    inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, shift)
    timer = Timer(inputs, repeats=1, outcomes=[(("window_forward", A), "it broke")])
    assert [timer("window_forward", tile) for tile in (A, B)] == [None, None]
    assert timer("window_forward", C) is None
    assert len(timer.refused) == 2, "said once"
    assert timer.refused[1].startswith("window_forward: all others, for there is nothing to compare them with")
    assert [timer("select", tile) for tile in (A, B)] == [1.0, 1.0], "of another kernel there is"


def test_what_no_process_got_through_is_not_run(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    prepare = tile_trials.prepare_pass
    monkeypatch.setattr(
        tuning, "prepare_pass", lambda inputs, kernel, tile: asked.append(tile) or prepare(inputs, kernel, tile)
    )
    built_in, second, third, *_ = CASE.candidates("window_forward")
    outcomes = [(("window_forward", second), "it hung"), (("window_forward", third), "")]
    timer = Timer(inputs, repeats=1, outcomes=outcomes)
    case = replace(CASE, dtype="bfloat16")
    monkeypatch.setattr(Case, "kernels", property(lambda case: ["window_forward"]))
    assert measure_all(case, timer, None, timer.was_tried) == {
        "window_forward": [(built_in, 1.0), (second, None), (third, 1.0)]
    }, "those that time was over for are left out"
    assert second not in asked
    assert timer.refused == [f"window_forward {describe(second)}: it hung"]


def test_why_no_process_began_stands_beside_what_was_tuned(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "try_candidates", lambda *_: Tried([], ["no such device"]))
    monkeypatch.setattr(tuning, "draw_inputs", lambda *_: inputs)
    monkeypatch.setattr(tuning, "find_place", lambda device: PLACE)
    tuned = tuning.tune(inputs.case, torch.device("cpu"), repeats=1)
    assert tuned.complaints == ["no such device"]
    assert all(len(tried) == 1 for tried in tuned.times.values()), "of the built-in ones there are times all the same"


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
    long = "a report of many lines\nPassManager::run failed" + 1000 * "!"
    assert time_with(RuntimeError(long)) is None
    told = Timer(inputs, repeats=1)
    assert told("window_forward", {**A, "NBUF": 3}) is None
    (refused,) = told.refused
    assert refused.startswith("window_forward 16 ahead=3: it cannot be compiled: PassManager::run failed!!")
    assert len(refused) < 250, "it goes into checkpoints"
    with pytest.raises(RuntimeError, match="illegal memory access"):
        time_with(RuntimeError("CUDA error: an illegal memory access was encountered"))
