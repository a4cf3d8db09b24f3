"""The user's cache of tuned tiles: read back as it was written, and passed over where it cannot be used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.recipes.nsa.kernels.tile_store import Case, find_folder, load_tuned, save_tuned
from paceline.recipes.nsa.pattern import Pattern
from tests.recipes.nsa.kernels.tuned import CASE, PLACE, make_tuned


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def save() -> Path:
    path, problem = save_tuned(make_tuned())
    assert path is not None, problem
    return path


def test_what_was_tuned_is_found_again_and_nothing_else(cache: Path) -> None:
    assert load_tuned(CASE, PLACE)[0] is None
    path = save()
    assert path.is_relative_to(cache)
    assert load_tuned(CASE, PLACE) == (make_tuned().tiles, str(path))
    assert len(json.loads(path.read_text())["times"]["select"]) == len(CASE.candidates("select"))
    others = [replace(CASE, rows=1), replace(CASE, dtype="float16"), replace(CASE, pattern=Pattern(window=256))]
    for case in others:
        assert load_tuned(case, PLACE) == (None, f"nothing was tuned for {PLACE}: {case}")
    assert "window 256" in str(others[-1]), "of the same sizes, and told apart"
    assert load_tuned(CASE, replace(PLACE, triton="3.7.0"))[0] is None
    save_tuned(make_tuned(2))
    assert load_tuned(CASE, PLACE)[0] == make_tuned(2).tiles, "the newest counts"


DAMAGES = {
    "": "Expecting value",
    "{": "Expecting",
    "[1]": "of another version",
    '{"v": 2}': "of another version",
    '{"v": 1}': "something else than its name says",
}


@pytest.mark.parametrize("text", DAMAGES)
def test_a_damaged_file_is_passed_over_with_one_line(text: str) -> None:
    path = save()
    path.write_text(text)
    found, why = load_tuned(CASE, PLACE)
    assert found is None
    assert why.startswith(f"{path} is passed over: ")
    assert DAMAGES[text] in why
    assert "\n" not in why


def test_bytes_that_are_no_text_and_a_folder_in_its_place_are_passed_over() -> None:
    path = save()
    path.write_bytes(b"\xff\xfe\x00")
    assert "passed over" in load_tuned(CASE, PLACE)[1]
    path.unlink()
    path.mkdir()
    assert "passed over" in load_tuned(CASE, PLACE)[1]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda tiles: None, "it holds no tiles"),
        (lambda tiles: tiles | {"window_dream": {}}, "there is no kernel 'window_dream' any more"),
        (lambda tiles: {k: v for k, v in tiles.items() if k != "select"}, "it holds no tile of select"),
        (lambda tiles: tiles | {"select": {"BM": 7}}, "{'BM': 7} is no tile that select may have"),
        (lambda tiles: tiles | {"select": "fast"}, "fast is no tile that select may have"),
        (lambda tiles: tiles | {"select": "x" * 10**6}, f"{'x' * 79}… is no tile that select may have"),
        (lambda tiles: tiles | {"x" * 10**6: {}}, f"there is no kernel '{'x' * 78}… any more"),
    ],
)
def test_tiles_that_kernels_cannot_have_are_passed_over(change, why: str) -> None:
    path = save()
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"tiles": change(record["tiles"])}))
    assert load_tuned(CASE, PLACE) == (None, f"{path} is passed over: {why}")


def test_a_tile_that_does_not_fit_into_this_gpu_is_passed_over() -> None:
    """Kept by a version that did not ask how much shared memory there is."""
    case = replace(CASE, head_width=128)
    deep = {"BM": 64, "BN": 128, "num_warps": 4, "num_stages": 3}
    tuned = make_tuned(case=case)
    path, _ = save_tuned(replace(tuned, tiles=dict(tuned.tiles) | {"window_forward": deep}))
    found, _ = load_tuned(case, PLACE)
    assert found is not None
    assert found["window_forward"] == deep
    found, why = load_tuned(replace(case, shared=99 * 2**10), PLACE)
    assert found is None
    assert why.startswith(f"{path} is passed over: ")
    assert "is no tile that window_forward may have" in why


def test_numbers_that_are_equal_to_a_tile_become_that_tile() -> None:
    path = save()
    path.write_text(path.read_text().replace('"num_warps": 4', '"num_warps": 4.0'))
    found, _ = load_tuned(CASE, PLACE)
    assert found == make_tuned().tiles
    assert all(type(number) is int for tile in found.values() for number in tile.values())


def test_a_cache_that_cannot_be_written_is_told_of(cache: Path) -> None:
    cache.write_text("in the way")
    path, problem = save_tuned(make_tuned())
    assert path is None
    assert str(cache) in problem
    assert "passed over" in load_tuned(CASE, PLACE)[1]


def test_what_time_was_over_for_keeps_all_of_it_from_being_kept() -> None:
    """Or later runs would take it for whole, and never measure the rest."""
    whole = make_tuned()
    part = replace(whole, times=dict(whole.times) | {"select": whole.times["select"][:-2]})
    tried, total = part.count()
    assert total == tried + 2 == sum(len(CASE.candidates(kernel)) for kernel in CASE.kernels)
    path, problem = save_tuned(part)
    assert path is None
    assert problem == f"2 of {total} candidates were not run: time or memory was short"
    assert save_tuned(replace(part, complaints=["no device", "busy"]))[1].endswith("were not run: no device; busy")
    assert load_tuned(CASE, PLACE)[0] is None
    unfitting = replace(
        whole, times=dict(whole.times) | {"select": [(tile, None) for tile, _ in whole.times["select"]]}
    )
    assert save_tuned(unfitting)[0] is not None, "what does not fit was tried"


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        assert find_folder() == tmp_path / ".cache" / "paceline" / "nsa-tiles"

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert load_tuned(CASE, PLACE) == (None, "there is no home directory")
    assert save_tuned(make_tuned()) == (None, "there is no home directory")


def test_only_kernels_that_are_launched_have_tiles() -> None:
    def selected(case: Case) -> set[str]:
        return {kernel for kernel in case.kernels if kernel.startswith("selected")}

    assert selected(CASE) == {"selected_forward", "selected_gradient"}
    assert selected(replace(CASE, hopper=True)) == set()
    by_words = {"selected_past_forward", "selected_past_query_gradient", "selected_past_key_gradient"}
    assert selected(replace(CASE, length=2048)) == selected(replace(CASE, length=2048, hopper=True)) == by_words


def test_what_follows_from_the_gpu_does_not_tell_records_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was kept before kernels came that need fewer tiles is found with them, too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tuned = make_tuned()
    path, problem = save_tuned(tuned)
    assert path is not None, problem
    assert not {"hopper", "shared"} & set(json.loads(path.read_text())["case"])
    found, where = load_tuned(replace(CASE, hopper=True, shared=163 * 2**10), PLACE)
    assert where == str(path)
    assert found == {kernel: tile for kernel, tile in tuned.tiles.items() if not kernel.startswith("selected")}


def test_who_tunes_passes_over_what_was_tuned_before_there_was_a_candidate(cache: Path) -> None:
    path = save()
    hopper = replace(CASE, hopper=True)
    assert load_tuned(CASE, PLACE, whole=True)[0] == make_tuned().tiles
    assert load_tuned(hopper, PLACE)[0] is not None, "who does not tune takes it"
    reason = "it was tuned before there was compressed_key_gradient 64×64 ahead=3 w4 maxnreg128"
    assert load_tuned(hopper, PLACE, whole=True) == (None, f"{path} is passed over: {reason}")
    record = json.loads(path.read_text())
    for times in (None, [], {"select": 3}):
        path.write_text(json.dumps(record | {"times": times}))
        assert load_tuned(CASE, PLACE, whole=True)[0] is None
