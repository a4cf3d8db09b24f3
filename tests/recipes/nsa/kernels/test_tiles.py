"""Tiles of the kernels: what is built in, what may be tried, and what a call is given."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from paceline.recipes.nsa.kernels import chosen_attention, fast_path, fast_selection, range_attention
from paceline.recipes.nsa.kernels.fast_frame import fast
from paceline.recipes.nsa.kernels.range_attention import Words
from paceline.recipes.nsa.kernels.tiles import (
    _SOURCES,
    BUILT_IN,
    KERNELS,
    MOST_SHARED,
    Tile,
    Tiles,
    _digest,
    built_in,
    decode_tiles,
    describe,
    find_shared,
    list_candidates,
)
from paceline.recipes.nsa.paths import build_stages
from paceline.recipes.nsa.pattern import Pattern, build_frame, one_document
from paceline.recipes.nsa.stages import STAGES, name_stage

HALVES = (torch.bfloat16, torch.float16)
SMALL = 99 * 2**10
"""bytes of shared memory that a program may have on a GeForce; an A100 has 163 KiB"""


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_built_in_tile_is_the_first_candidate_of_several(kernel: str) -> None:
    for width in (64, 128):
        for dtype in HALVES:
            for block in (16, 32, 64):
                tiles = list_candidates(kernel, width, dtype, block)
                assert tiles[0] == built_in(kernel, width, dtype, block)
                if kernel.startswith("selected_past"):
                    assert max(tile["BN"] for tile in tiles) <= block, "as it is launched"
                assert len(tiles) > 3
                launched = [{"KEYS_FIRST": 0, **tile} for tile in tiles]
                assert all(each not in launched[:i] for i, each in enumerate(launched)), "nothing is measured twice"
            assert list_candidates(kernel, width, dtype, 128)
        assert list_candidates(kernel, width, torch.float32) == [built_in(kernel, width, torch.float32)]


def test_what_cannot_fit_is_not_tried() -> None:
    narrow, wide = (list_candidates("window_key_gradient", width, torch.bfloat16) for width in (64, 128))
    largest = {"BM": 128, "BN": 128, "num_warps": 8, "num_stages": 3}
    assert largest in narrow
    assert largest not in wide
    few = list_candidates("selected_gradient", 128, torch.bfloat16, block=128)
    assert describe(few[0]) == "64 w8 s1"
    assert not any(tile["ROWS"] == 128 for tile in few)


@pytest.mark.parametrize("width", [64, 128])
def test_a_hopper_gpu_has_keys_gradients_by_copies(width: int) -> None:
    def change(kernel: str, block: int = 64, dtype: torch.dtype = torch.bfloat16) -> str:
        """What is built in there, if it is something else; all that others have may be tried there, too."""
        usual = list_candidates(kernel, width, dtype, block)
        tiles = list_candidates(kernel, width, dtype, block, hopper=True)
        assert tiles[0] == BUILT_IN.find(kernel, width, dtype, block, hopper=True)
        assert all(tile in tiles for tile in usual)
        return describe(tiles[0]) if tiles[0] != usual[0] else ""

    assert {kernel for kernel in KERNELS if change(kernel)} == {
        "compressed_key_gradient", "selected_past_key_gradient", "window_key_gradient"
    }  # fmt: skip
    copied = f"64×64 ahead={3 if width == 64 else 2} w4 maxnreg128"
    assert change("window_key_gradient", block=16) == change("selected_past_key_gradient", block=128) == copied
    assert change("selected_past_key_gradient", block=32) == "", "its tiles of keys are longer than such a block"
    assert change("window_key_gradient", dtype=torch.float32) == ""


def test_large_blocks_and_fp32_have_tiles_of_their_own() -> None:
    assert built_in("selected_forward", 64, torch.bfloat16, 128) == {"ROWS": 64, "num_warps": 8, "num_stages": 1}
    assert built_in("window_forward", 64, torch.bfloat16, 128) == built_in("window_forward", 64, torch.bfloat16)
    assert built_in("window_forward", 16, torch.float32)["BM"] == 32


def test_a_gpu_with_less_shared_memory_has_tiles_that_fit_there() -> None:
    usual, smaller = ({"ROWS": rows, "num_warps": 4, "num_stages": 1} for rows in (32, 16))
    for shared, tile in ((MOST_SHARED, usual), (163 * 2**10, usual), (SMALL, smaller)):
        assert built_in("selected_gradient", 128, torch.float32, 64, shared) == tile
        assert list_candidates("selected_gradient", 128, torch.float32, 64, shared) == [tile]
        assert built_in("selected_gradient", 64, torch.float32, 64, shared) == usual, "narrower heads take less"
    assert built_in("selected_gradient", 128, torch.float32, 128, 163 * 2**10) == smaller
    for kernel in KERNELS:
        for width in (64, 128):
            most, some = (list_candidates(kernel, width, torch.bfloat16, 64, shared) for shared in (MOST_SHARED, SMALL))
            assert some[0] == most[0] == built_in(kernel, width, torch.bfloat16)
            assert len(some) > 3
            assert all(tile in most for tile in some)
    deep = {"BM": 64, "BN": 128, "num_warps": 4, "num_stages": 3}
    assert deep in list_candidates("window_forward", 128, torch.bfloat16, 64, MOST_SHARED)
    assert deep not in list_candidates("window_forward", 128, torch.bfloat16, 64, SMALL)


def test_what_a_gpu_has_is_what_triton_holds_kernels_to(monkeypatch: pytest.MonkeyPatch) -> None:
    has = {0: SMALL, 1: 10**6}
    utils = SimpleNamespace(get_device_properties=lambda index: {"max_shared_mem": has[index]})
    runtime = ModuleType("triton.runtime")
    runtime.driver = SimpleNamespace(active=SimpleNamespace(utils=utils))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton.runtime", runtime)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    ask = find_shared.__wrapped__
    assert ask(torch.device("cuda", 0)) == ask(torch.device("cuda")) == SMALL
    assert ask(torch.device("cuda", 1)) == MOST_SHARED, "with more it would have other tiles than were measured"
    assert ask(torch.device("cpu")) == ask(torch.device("meta")) == MOST_SHARED


def test_operators_look_tiles_up_by_what_their_gpu_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they compute or tell a compiler how large their results will be: both ask by the queries' device."""
    asked = []

    class Told(Tiles):
        def find(
            self, kernel: str, width: int, dtype: torch.dtype, block: int = 64, shared: int = 0, hopper: bool = False
        ) -> Tile:
            asked.append((kernel, block, shared, hopper))
            return super().find(kernel, width, dtype, block, shared)

    for operators in (range_attention, chosen_attention, fast_selection):
        monkeypatch.setattr(operators, "find_shared", lambda device: {"cpu": SMALL}[device.type])
        monkeypatch.setattr(operators, "decode_tiles", lambda code: Told())
    monkeypatch.setattr(range_attention, "has_hopper", lambda device: {"cpu": True}[device.type])
    query, keys = torch.zeros(1, 8, 2, 128), torch.zeros(1, 8, 1, 128)
    assert chosen_attention._tile(Told(), "selected_gradient", query, 64)["ROWS"] == 16
    range_attention._plan_keys(query, keys, None, "window", "")
    range_attention._plan_keys(query, keys, Words(torch.zeros(1), 32), "selected_past", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast_selection, "_score", lambda *given: None)
        patch.setattr(fast_selection, "_choose", lambda *given: None)
        fast_selection._select(query, keys, *[torch.zeros(1)] * 5, Pattern().sizes, "")
    assert asked == [
        ("selected_gradient", 64, SMALL, False),
        ("window_key_gradient", 64, SMALL, True),
        ("selected_past_key_gradient", 32, SMALL, True),
        ("select", 64, SMALL, False),
    ]


def test_a_chosen_tile_is_for_its_kernel_and_its_type_of_numbers() -> None:
    tile = {"BM": 128, "BN": 32, "num_warps": 8, "num_stages": 2}
    tiles = Tiles({"window_forward": tile}, torch.bfloat16)
    assert tiles.find("window_forward", 64, torch.bfloat16) == tile
    for kernel, dtype in (("compressed_forward", torch.bfloat16), ("window_forward", torch.float16)):
        assert tiles.find(kernel, 64, dtype) == BUILT_IN.find(kernel, 64, dtype) != tile


def test_a_rank_whose_gpu_is_no_hopper_has_its_own_tile_where_rank_0_chose_one_for_hopper() -> None:
    kernel = "window_key_gradient"
    tiles = Tiles({kernel: built_in(kernel, 64, torch.bfloat16, hopper=True)}, torch.bfloat16)
    assert "NBUF" in tiles.find(kernel, 64, torch.bfloat16, hopper=True)
    assert tiles.find(kernel, 64, torch.bfloat16) == built_in(kernel, 64, torch.bfloat16)


def test_tiles_travel_as_a_code_that_tells_versions_apart() -> None:
    tile = {"BM": 128, "BN": 32, "num_warps": 8, "num_stages": 2}
    tiles = Tiles({"window_forward": tile}, torch.bfloat16)
    assert decode_tiles(tiles.code) == tiles != BUILT_IN
    assert decode_tiles(BUILT_IN.code) == BUILT_IN
    assert Tiles({"window_forward": dict(reversed(tile.items()))}, torch.bfloat16).code == tiles.code
    assert _SOURCES in tiles.code
    assert _digest("tiles") != _digest("tiles", "chosen_work")


def test_tiles_are_told_in_short() -> None:
    assert describe({"BM": 64, "BN": 128, "num_warps": 4, "num_stages": 3}) == "64×128 w4 s3"
    assert describe({"ROWS": 128, "num_warps": 8, "num_stages": 2, "maxnreg": 128}) == "128 w8 s2 maxnreg128"


def test_tiles_travel_in_the_frame_and_stages_keep_their_names() -> None:
    tiles = Tiles({"select": built_in("select", 64, torch.bfloat16)}, torch.bfloat16)
    stages = build_stages("fast", tiles)
    assert stages is not None
    frame = build_frame(one_document(1, 70, torch.device("cpu")), Pattern(), 64, torch.float32)
    assert fast(stages.lay_out(frame, Pattern())).tiles is tiles
    assert fast(fast_path.FAST.lay_out(frame, Pattern())).tiles is BUILT_IN
    assert [name_stage(stages, stage) for stage in STAGES] == [name_stage(fast_path.FAST, stage) for stage in STAGES]
