"""The tiles of the GPU kernels: how much one program takes at a time, with how many warps, and how many loads ahead; and which may be tried.

    BUILT_IN.find("window_forward", 64, torch.bfloat16)         -> {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 2}
    list_candidates("window_forward", 64, torch.bfloat16)       -> that one, and others that fit into an SM
    find_shared(device)                                         -> 101376, of a GPU for which both are to be such as fit there

Another tile adds in another order. So what a run began with is kept in its checkpoints (tile_choice.py).
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

Tile = Mapping[str, int]
"""what a kernel is launched with"""

KERNELS = {
    "compressed_forward": "range_forward",
    "compressed_query_gradient": "range_query_gradient",
    "compressed_key_gradient": "range_key_gradient",
    "select": "score",
    "selected_forward": "chosen_forward",
    "selected_gradient": "chosen_gradient",
    "selected_past_forward": "range_forward",
    "selected_past_query_gradient": "range_query_gradient",
    "selected_past_key_gradient": "range_key_gradient",
    "window_forward": "range_forward",
    "window_query_gradient": "range_query_gradient",
    "window_key_gradient": "range_key_gradient",
}
"""what has a tile of its own, and the kernel that it launches"""

_TILES: Mapping[tuple[str, int], Tile] = {
    ("range_forward", 64): {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 2},
    # So many registers that four programs fit: the compiler would take a few more for no gain.
    ("range_query_gradient", 64): {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 2, "maxnreg": 128},
    ("selected_past_query_gradient", 64): {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 3},
    ("range_key_gradient", 64): {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 3},
    ("chosen_forward", 64): {"ROWS": 128, "num_warps": 4, "num_stages": 3},
    ("chosen_gradient", 64): {"ROWS": 64, "num_warps": 4, "num_stages": 3},
    ("score", 64): {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 3},
    ("range_forward", 128): {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 3},
    ("window_forward", 128): {"BM": 64, "BN": 32, "num_warps": 4, "num_stages": 2},
    ("range_query_gradient", 128): {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 2},
    ("range_key_gradient", 128): {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 2},
    ("chosen_forward", 128): {"ROWS": 128, "num_warps": 4, "num_stages": 2},
    ("chosen_gradient", 128): {"ROWS": 32, "KEYS_FIRST": 1, "num_warps": 4, "num_stages": 3},
    ("score", 128): {"BM": 64, "BN": 128, "num_warps": 4, "num_stages": 3},
}
"""the fastest of those tried on an H200 with selection blocks of 64, by kernel, or what launches it, and width of a head"""
_OF_LARGE_BLOCKS: Tile = {"ROWS": 64, "num_warps": 8, "num_stages": 1}
"""of chosen blocks of more than 64 tokens: what fits, their keys and values being as large as they are"""
_FP32_TILES: Mapping[str, Tile] = {
    "range": {"BM": 32, "BN": 32, "num_warps": 4, "num_stages": 1},
    "chosen": {"ROWS": 32, "num_warps": 4, "num_stages": 1},
    "score": {"BM": 32, "BN": 32, "num_warps": 4, "num_stages": 3},
}
"""by how the kernel's name begins, for any width: nothing is fast in fp32"""
_SMALLER_FP32_TILES: Mapping[tuple[str, int, int], tuple[int, Tile]] = {
    ("chosen_gradient", 128, 64): (106_496, {"ROWS": 16, "num_warps": 4, "num_stages": 1}),
    ("chosen_gradient", 128, 128): (180_224, {"ROWS": 16, "num_warps": 4, "num_stages": 1}),
}
"""by kernel, width of a head and tokens of a selection block: bytes of shared memory that the one above takes, and what is launched where
there are fewer. As compiled by Triton 3.8 for compute capability 8.0, 8.6, 8.9 and 12.0; all others fit there"""
LARGE_BLOCKS_SHARED = 155_648
"""bytes of shared memory with which blocks of 128 tokens of heads 128 wide have tiles in every type; half as large they have them everywhere"""

_GRIDS: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "range": {"BM": (64, 128), "BN": (32, 64, 128), "num_warps": (4, 8), "num_stages": (2, 3)},
    "chosen": {"ROWS": (64, 128), "num_warps": (4, 8), "num_stages": (1, 2, 3)},
    "chosen_gradient": {"ROWS": (32, 64, 128), "KEYS_FIRST": (0, 1), "num_warps": (4, 8), "num_stages": (2, 3)},
    "score": {"BM": (64, 128), "BN": (64, 128), "num_warps": (4, 8), "num_stages": (2, 3)},
}
"""what is tried besides, by the kernel's name or how it begins"""
_COPIED: Mapping[int, Tile] = {
    64: {"BM": 64, "BN": 64, "NBUF": 3, "num_warps": 4, "maxnreg": 128},
    128: {"BM": 64, "BN": 64, "NBUF": 2, "num_warps": 4, "maxnreg": 128},
}
"""by width of a head, of keys' gradients on a Hopper GPU: its own kernel has queries copied so many tiles ahead (key_gradient_kernels.py). Two
programs of an SM fit; with more registers a thread it was slower"""
_DEFAULTS: Tile = {"KEYS_FIRST": 0}
"""of kernels, where a tile does not say"""
_LEAST_NUMBERS, _MOST_NUMBERS = 48, 192
"""fp32 numbers of sums and scores of one thread, which has 255 registers"""
MOST_SHARED = 227 * 2**10
"""bytes of shared memory that a program may have on an H200"""


@functools.cache
def find_shared(device: torch.device) -> int:
    """Bytes of shared memory that a program may have there, the same whenever it is asked; those of an H200 where there are more, or no GPU."""
    if device.type != "cuda":
        return MOST_SHARED
    from triton.runtime import driver

    index = torch.cuda.current_device() if device.index is None else device.index
    # What Triton itself holds a kernel to.
    return min(MOST_SHARED, int(driver.active.utils.get_device_properties(index)["max_shared_mem"]))


def built_in(
    kernel: str, width: int, dtype: torch.dtype, block: int = 64, shared: int = MOST_SHARED, hopper: bool = False
) -> Tile:
    """What is launched unless something better was measured; `block`: tokens of a selection block, `shared` and `hopper`: what `find_shared` and
    `has_hopper` gave."""
    return _cut(kernel, _pick(kernel, width, dtype, block, shared, hopper), block)


def _pick(kernel: str, width: int, dtype: torch.dtype, block: int, shared: int, hopper: bool) -> Tile:
    launched = KERNELS[kernel]
    if dtype == torch.float32:
        needed, smaller = _SMALLER_FP32_TILES.get((launched, width, block), (0, {}))
        return smaller if needed > shared else _FP32_TILES[_family(launched)]
    if _family(launched) == "chosen" and block > 64:
        return _OF_LARGE_BLOCKS
    # Its tiles of keys are never cut.
    if hopper and launched == "range_key_gradient" and _cut(kernel, _COPIED[width], block) == _COPIED[width]:
        return _COPIED[width]
    return _TILES.get((kernel, width)) or _TILES[launched, width]


def list_candidates(
    kernel: str, width: int, dtype: torch.dtype, block: int = 64, shared: int = MOST_SHARED, hopper: bool = False
) -> list[Tile]:
    """The built-in one first; of the others those that by their size can be expected to fit, each launch once. In fp32 no others."""
    first = built_in(kernel, width, dtype, block, shared, hopper)
    if dtype == torch.float32:
        return [first]
    grid = _GRIDS.get(KERNELS[kernel]) or _GRIDS[_family(KERNELS[kernel])]
    found = [first]
    for values in itertools.product(*grid.values()):
        tile = _cut(kernel, dict(zip(grid, values, strict=True)), block)
        is_new = all({**_DEFAULTS, **tile} != {**_DEFAULTS, **each} for each in found)
        if is_new and _fits(KERNELS[kernel], tile, width, block, shared):
            found.append(tile)
    return found


def _cut(kernel: str, tile: Tile, block: int) -> Tile:
    """Where chosen blocks are read by tiles over the past, they are as many keys as a block at most: longer ones could have keys of three."""
    return {**tile, "BN": min(tile["BN"], block)} if kernel.startswith("selected_past") else tile


def _family(launched: str) -> str:
    return launched.partition("_")[0]


def _fits(launched: str, tile: Tile, width: int, block: int, shared: int) -> bool:
    """By sums and scores in registers, and rows of 2 bytes a number in shared memory: kept there, or loaded for each stage."""
    queries, keys = (tile["ROWS"], block) if "ROWS" in tile else (tile["BM"], tile["BN"])
    sums, scores, kept, loaded = {
        "range_forward": (queries, 1, queries, 2 * keys),
        "range_query_gradient": (queries, 2, 2 * queries, 2 * keys),
        "range_key_gradient": (2 * keys, 2, 2 * keys, 2 * queries),
        "chosen_forward": (queries, 1, 2 * keys, queries),
        "chosen_gradient": (2 * keys + queries, 2, 2 * keys, 2 * queries),
        "score": (0, 2, keys, queries),
    }[launched]
    numbers = (sums * width + scores * queries * keys) // (32 * tile["num_warps"])
    needed = kept + tile["num_stages"] * loaded
    if shared < MOST_SHARED:
        # Smaller GPUs multiply from registers: less is kept, one load less lies ahead, but a block's keys are there turned as well. Of 454 tiles that
        # Triton 3.8 compiled for 8.9 and 12.0 (2026-11-18), 19 are on the other side of 99 KiB than this says; by the sum above it would be 99.
        kept += keys if launched == "chosen_gradient" else 0
        needed = max(kept + loaded, (tile["num_stages"] - 1) * loaded)
    # With fewer than so many, half of the warps would do.
    least = _LEAST_NUMBERS if tile["num_warps"] > 4 else 0
    return least <= numbers <= _MOST_NUMBERS and 2 * width * needed <= shared


def describe(tile: Tile) -> str:
    """In short: 64×64 w4 s3."""
    names = {"num_warps": "w", "num_stages": "s", "KEYS_FIRST": "keys-first=", "NBUF": "ahead="}
    sizes = [str(size) for name, size in tile.items() if name.isupper() and name not in names]
    others = [f"{names.get(name, name)}{tile[name]}" for name in tile if not name.isupper() or name in names]
    return " ".join(["×".join(sizes), *others])


def _digest(*names: str) -> str:
    sources = (Path(__file__).with_name(f"{name}.py").read_bytes() for name in names)
    return hashlib.sha256(b"".join(sources)).hexdigest()[:12]


_SOURCES = _digest("chosen_attention", "chosen_work", "fast_selection", "hopper", "range_attention", "tiles")
"""Of what decides how large the results of those operators are that are given tiles; of the others it follows from what they are given.
torch.compile keeps on disk what it compiled for them, and finds it by what they are given: were that all, an edit of these files would end in
an assertion about sizes."""


@dataclass(frozen=True)
class Tiles:
    """The tile of every kernel."""

    chosen: Mapping[str, Tile] = field(default_factory=dict)
    """by the names of KERNELS; where there is none, the built-in one"""
    dtype: torch.dtype | None = None
    """the type of numbers that they were chosen for; others have the built-in ones"""
    code: str = field(init=False, repr=False, compare=False)
    """all of it in JSON: an operator of torch can be given that, and torch.compile takes it for a constant"""

    def __post_init__(self) -> None:
        told = {
            "chosen": {kernel: dict(tile) for kernel, tile in self.chosen.items()},
            "dtype": self.dtype and str(self.dtype).removeprefix("torch."),
            "sources": _SOURCES,
        }
        object.__setattr__(self, "code", json.dumps(told, sort_keys=True))

    def find(
        self,
        kernel: str,
        width: int,
        dtype: torch.dtype,
        block: int = 64,
        shared: int = MOST_SHARED,
        hopper: bool = False,
    ) -> Tile:
        """What it is launched with, for heads of that width and queries of that type, on a GPU that has all that."""
        # What rank 0 settled on is all ranks', and its GPU need not be theirs.
        if dtype == self.dtype and kernel in self.chosen and (hopper or "NBUF" not in self.chosen[kernel]):
            return self.chosen[kernel]
        return built_in(kernel, width, dtype, block, shared, hopper)


BUILT_IN = Tiles()


@functools.cache
def decode_tiles(code: str) -> Tiles:
    """Those that have this code."""
    told = json.loads(code)
    return Tiles(told["chosen"], told["dtype"] and getattr(torch, told["dtype"]))
