"""Which tiles a run has: tuned or built in at its first start, and those from then on, whatever the cache says."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.recipes.nsa import workload
from paceline.recipes.nsa.kernels import tile_choice, tuning
from paceline.recipes.nsa.kernels.tile_choice import read_tiles, settle_tiles, tell_tiles
from paceline.recipes.nsa.kernels.tile_store import find_folder, save_tuned
from paceline.recipes.nsa.kernels.tiles import BUILT_IN, MOST_SHARED, describe
from paceline.workload import Setting, Settles
from tests.recipes.nsa.gpus import pretend_gpu
from tests.recipes.nsa.kernels.tuned import CASE, PLACE, make_tuned
from tests.recipes.nsa.test_workload import build

DEVICE = torch.device("cuda", 0)
TILES = {index: {kernel: dict(tile) for kernel, tile in make_tuned(index).tiles.items()} for index in (0, 1, 2)}


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tile_choice, "find_place", lambda device: PLACE)
    monkeypatch.setattr(workload, "find_shared", lambda device: MOST_SHARED)
    monkeypatch.setattr(workload, "has_hopper", lambda device: False)


def settle(word: str, before: Any = None, case=CASE) -> dict[str, Any]:
    """As it comes back from a checkpoint."""
    return json.loads(json.dumps(settle_tiles(word, case, DEVICE, before, 60)))


def test_auto_takes_what_was_tuned_and_else_the_built_in_ones() -> None:
    found = settle("auto")
    assert (found["source"], found["tiles"]) == ("built-in", TILES[0])
    assert found["reason"] == f"nothing was tuned for {PLACE}: {CASE}"
    save_tuned(make_tuned(1))
    found = settle("auto")
    assert (found["source"], found["tiles"]) == ("tuned", TILES[1])
    assert str(find_folder()) in found["reason"]
    found = settle("built-in")
    assert (found["source"], found["tiles"], found["reason"]) == ("built-in", TILES[0], "as requested")
    in_fp32 = settle("auto", case=replace(CASE, dtype="float32"))
    assert in_fp32["reason"] == "there are no others in fp32"


def test_what_was_not_tuned_yet_is_tuned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(tuning, "tune", lambda *given: asked.append(given) or make_tuned(2))
    for _ in range(2):
        found = settle("tune")
        assert (found["source"], found["tiles"]) == ("tuned", TILES[2])
    assert asked == [(CASE, DEVICE, 60)]


def test_a_tuning_that_was_cut_off_is_used_and_said_and_the_next_one_measures_again(monkeypatch) -> None:
    whole = make_tuned(2)
    part = replace(whole, times=dict(whole.times) | {"select": whole.times["select"][:1]})
    asked = []
    monkeypatch.setattr(tuning, "tune", lambda *given: asked.append(given) or (part if len(asked) == 1 else whole))
    tried, total = part.count()
    found = settle("tune")
    assert (found["source"], found["tiles"]) == ("tuned", TILES[2])
    assert (
        f"{tried} of {total} candidates tried, not kept for other runs: {total - tried} of {total} candidates were not run: time or"
        in found["reason"]
    )
    assert settle("auto")["source"] == "built-in"
    found = settle("tune")
    assert f"{total} of {total} candidates tried, kept in {find_folder()}" in found["reason"]
    assert len(asked) == 2
    assert settle("auto")["source"] == "tuned"


def test_why_something_kept_is_tuned_anew_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = save_tuned(make_tuned(1))
    assert path is not None
    path.write_text("{")
    monkeypatch.setattr(tuning, "tune", lambda *given: make_tuned(2))
    reason = settle("tune")["reason"]
    assert reason.startswith(f"{path} is passed over: ")
    assert "; tuned before the first step, " in reason


def test_a_shape_too_large_to_tune_has_built_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def tune(*given: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(tuning, "tune", tune)
    found = settle("tune")
    assert (found["source"], found["tiles"]) == ("built-in", TILES[0])
    assert "no memory to tune" in found["reason"]


def test_what_is_tuned_without_a_place_to_keep_it_is_used_all_the_same(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tuning, "tune", lambda *given: make_tuned(2))
    found = settle("tune")
    assert found["tiles"] == TILES[2]
    assert "not kept for other runs: " in found["reason"]


@pytest.mark.parametrize("word", ["auto", "built-in", "tune"])
def test_a_run_goes_on_with_the_tiles_it_began_with(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "tune", lambda *given: make_tuned(1))
    first = settle(word)
    save_tuned(make_tuned(2))
    monkeypatch.setattr(tuning, "tune", None)
    again = settle(word, first)
    assert json.dumps(again) == json.dumps(first), "checkpoints of a run are the same whether it was interrupted or not"
    fewer = settle(word, first, replace(CASE, rows=2))
    assert fewer["tiles"] == first["tiles"], "another number of ranks"


def test_other_built_in_tables_do_not_change_a_run_that_began(monkeypatch: pytest.MonkeyPatch) -> None:
    began = settle("auto") | {"tiles": TILES[1]}  # what another version had built in
    assert settle("auto", began)["tiles"] == TILES[1]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"word": "built-in"}, "model.tiles was built-in"),
        ({"gpu": "another GPU"}, "they were for another GPU"),
        ({"case": asdict(replace(CASE, dtype="float16"))}, "another shape or precision"),
        ({"tiles": TILES[1] | {"select": {"BM": 8}}}, "no tile that select may have"),
        ({"tiles": TILES[1] | {"old": {}}}, "there is no kernel 'old' any more"),
        ({"tiles": 5}, "it holds no tiles"),
        ({"case": 5}, "mapping"),
    ],
)
def test_what_it_began_with_may_not_be_had(change: dict[str, Any], why: str) -> None:
    save_tuned(make_tuned(2))
    found = settle("auto", settle("auto") | {"tiles": TILES[1]} | change)
    assert found["tiles"] == TILES[2]
    assert found["reason"].startswith("not those that this run began with: ")
    assert why in found["reason"]


@pytest.mark.parametrize("before", [[1], {"word": "auto"}, "auto"])
def test_a_record_that_is_none(before: Any) -> None:
    assert settle("auto", before)["tiles"] == TILES[0]


def test_what_kernels_are_given_and_what_is_told() -> None:
    save_tuned(make_tuned(1))
    settled = settle("auto")
    tiles = read_tiles(settled)
    assert tiles.find("select", 64, torch.bfloat16) == TILES[1]["select"]
    assert read_tiles({}) is BUILT_IN
    where, what = tell_tiles("auto", settled)
    assert (where.about, where.effective) == ("model.tiles", "tuned")
    assert where.reason == f"settled for this run: {settled['reason']}"
    assert what.about == "attention.tiles"
    assert "selected_gradient " + describe(TILES[1]["selected_gradient"]) in what.effective
    assert what.effective.count(",") == len(CASE.kernels) - 1


def test_the_recipe_settles_them_where_kernels_compute_it(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = build("model.head_width=64", "model.heads=12", "model.groups=2", "data.length=256", "model.tiles=auto")
    assert isinstance(recipe, Settles)
    cpu = Setting(torch.device("cpu"), "own")
    assert recipe.settle(cpu, {"tiles": {"of": "a GPU"}}) == {"tiles": {"of": "a GPU"}}, "kept for when there is one"
    recipe.build_model(replace(cpu, settled={"tiles": {"of": "a GPU"}}))
    said = {choice.about: choice for choice in recipe.choices(cpu)}
    assert said["model.tiles"].effective == "none"
    assert "attention.tiles" not in said
    pretend_gpu(monkeypatch)
    setting = Setting(DEVICE, "own", precision="bf16", micro_batch=4)
    settled = recipe.settle(setting, {})
    case = settled["tiles"]["case"]
    assert (case["rows"], case["length"], case["dtype"]) == (4, 256, "bfloat16")
    limits = []
    monkeypatch.setattr(workload, "settle_tiles", lambda *given: limits.append(given[-1]))
    for limit in ("parallel.timeout_s=1e6", "parallel.timeout_s=100", "supervise.start_limit_s=60"):
        build("model.head_width=64", "model.heads=12", "model.groups=2", limit).settle(setting, {})
    assert limits == [240, 50, 30], "half of what others wait before they call it a hang"
    setting = replace(setting, settled=settled)
    said = {choice.about: choice for choice in recipe.choices(setting)}
    assert said["model.tiles"].effective == "built-in"
    given = []
    monkeypatch.setattr(workload, "build_stages", lambda path, tiles: given.append((path, tiles.chosen)))
    recipe.build_model(setting)
    assert given == [("fast", settled["tiles"]["tiles"])]


def test_a_rank_whose_first_rank_has_no_kernels_begins_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = build("model.head_width=64", "model.heads=12", "model.groups=2", "data.length=256")
    pretend_gpu(monkeypatch)
    said = {choice.about: choice for choice in recipe.choices(Setting(DEVICE, "own", precision="bf16"))}
    assert said["model.sparse_path"].effective == "fast"
    assert "model.tiles" not in said


def test_a_trained_model_has_the_tiles_of_its_run_where_the_gpu_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = build("model.head_width=64", "model.heads=12", "model.groups=2", "data.length=256", "model.tiles=built-in")
    pretend_gpu(monkeypatch)
    monkeypatch.setattr(tuning, "tune", None)
    setting = Setting(DEVICE, "own", precision="bf16", micro_batch=4)
    settled = recipe.settle(setting, {})
    settled["tiles"]["word"] = "tune"  # of an earlier attempt than the run's last
    used = replace(setting, micro_batch=1)
    assert recipe.keep(used, settled)["tiles"]["tiles"] == settled["tiles"]["tiles"]
    for other in (settled["tiles"] | {"gpu": "another GPU"}, settled["tiles"] | {"tiles": {}}, None, "none"):
        assert recipe.keep(used, {"tiles": other}) == {"tiles": {}}
    assert recipe.keep(used, {}) == {"tiles": {}}
    assert recipe.keep(Setting(torch.device("cpu"), "own"), settled) == {}


def test_what_reads_selected_blocks_without_tiles_is_told() -> None:
    for gathers in (False, True):
        tiles = make_tuned(case=replace(CASE, hopper=gathers)).tiles
        _, told = tell_tiles("auto", {"tiles": tiles, "source": "tuned", "reason": "", "gpu": "a GPU"})
        assert ("kernels for Hopper" in told.effective) == gathers
        assert ("selected_forward" in told.effective) != gathers
