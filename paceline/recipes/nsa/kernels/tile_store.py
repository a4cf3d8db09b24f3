"""Which tiles were the fastest, measured once per GPU, versions and shape, and kept for later runs in the user's cache.

    $XDG_CACHE_HOME (or ~/.cache)/paceline/nsa-tiles/1x8192-12x2x64-bfloat16-3fa9c0d41b7e.json

One file per measurement, each replaced as a whole: several may tune at once. What cannot be used is passed over, with the reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from paceline.files import read_json, write_json
from paceline.recipes.nsa.kernels.gather_attention import can_gather
from paceline.recipes.nsa.kernels.past_attention import MOST_BLOCKS
from paceline.recipes.nsa.kernels.tiles import KERNELS, MOST_SHARED, Tile, describe, list_candidates
from paceline.recipes.nsa.pattern import Pattern

SCHEMA = 1
_FOLLOWING = ("hopper", "shared")
"""of a case, what follows from the rest of it and the GPU: what was kept before they were asked for is found with them, too"""
_LONGEST = 80
"""characters of what a file holds that are told"""


@dataclass(frozen=True)
class Case:
    """What tiles are tuned for."""

    rows: int
    length: int
    heads: int
    groups: int
    head_width: int
    dtype: str
    """bfloat16, float16 or float32"""
    pattern: Pattern = field(default_factory=Pattern)
    hopper: bool = False
    """the GPU has what the kernels in Gluon need (hopper.py)"""
    shared: int = MOST_SHARED
    """bytes of shared memory that a program may have on the GPU"""

    def record(self) -> dict[str, Any]:
        """As it is kept; without what follows from it and the GPU."""
        return {name: value for name, value in asdict(self).items() if name not in _FOLLOWING}

    @property
    def torch_dtype(self) -> torch.dtype:
        found = getattr(torch, self.dtype)
        assert isinstance(found, torch.dtype)
        return found

    @property
    def kernels(self) -> list[str]:
        """Those that are launched at this length: chosen blocks are read in one of two ways, or in a third that has no tiles."""
        is_short = self.pattern.num_selection(self.length) <= MOST_BLOCKS
        left_out = [] if is_short else ["selected_past"]
        block = self.pattern.selection_block
        gathers = self.hopper and can_gather(self.heads // self.groups, self.head_width, self.torch_dtype, block)
        if is_short or gathers:
            left_out += ["selected_forward", "selected_gradient"]
        return [kernel for kernel in KERNELS if not kernel.startswith(tuple(left_out))]

    def candidates(self, kernel: str) -> list[Tile]:
        block = self.pattern.selection_block
        return list_candidates(kernel, self.head_width, self.torch_dtype, block, self.shared, self.hopper)

    def __str__(self) -> str:
        heads = f"{self.heads} heads in {self.groups} groups, {self.head_width} wide"
        shape = f"{self.rows} × {self.length:,} tokens, {heads}, {self.dtype}"
        # The usual pattern goes without saying; of another one nobody would see why what was tuned for the same sizes is not taken.
        if self.pattern == Pattern():
            return shape
        sizes = self.pattern
        blocks = f"blocks of {sizes.block} every {sizes.stride}, {sizes.selected} of {sizes.selection_block} selected"
        return f"{shape}, {blocks}, window {sizes.window}"


@dataclass(frozen=True)
class Place:
    """Where they are tuned."""

    gpu: str
    torch: str
    triton: str

    def __str__(self) -> str:
        return f"{self.gpu}, torch {self.torch}, Triton {self.triton}"


@dataclass(frozen=True)
class Tuned:
    """What was found."""

    case: Case
    place: Place
    tiles: Mapping[str, Tile]
    """of every kernel the fastest"""
    times: Mapping[str, list[tuple[Tile, float | None]]]
    """ms of all that were tried, the built-in one first; None: it does not fit, or was refused. What time was over for is not among them"""
    refused: Sequence[str] = ()
    """tiles that compute something else or break, and why"""
    complaints: Sequence[str] = ()
    """why processes that were to run candidates did not begin"""

    def count(self) -> tuple[int, int]:
        """(candidates that were tried, all that there are)."""
        return sum(map(len, self.times.values())), sum(len(self.case.candidates(kernel)) for kernel in self.times)


def find_place(device: torch.device) -> Place:
    """Of a GPU."""
    import triton

    return Place(torch.cuda.get_device_name(device), torch.__version__, triton.__version__)


def find_folder() -> Path | None:
    """Where tuned tiles are kept; None: there is no home."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # A relative one counts as none given, by the rules of that variable.
        cache = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return cache / "paceline" / "nsa-tiles"


def load_tuned(case: Case, place: Place, whole: bool = False) -> tuple[dict[str, Tile] | None, str]:
    """(tiles by kernel, where they are), or (None, why there are none). `whole`: only where all candidates of today were tried."""
    folder = find_folder()
    if folder is None:
        return None, "there is no home directory"
    path = folder / _name(case, place)
    try:
        record = read_json(path)
        if not isinstance(record, dict) or record.get("v") != SCHEMA:
            raise ValueError("of another version")
        if record.get("case") != case.record() or record.get("place") != asdict(place):
            raise ValueError("of something else than its name says")
        tiles = check_tiles(record.get("tiles"), case)
        if whole:
            _check_tried(record.get("times"), case)
        return tiles, str(path)
    except FileNotFoundError:
        return None, f"nothing was tuned for {place}: {case}"
    except (OSError, ValueError, RecursionError) as error:
        return None, f"{path} is passed over: {error}"


def save_tuned(tuned: Tuned) -> tuple[Path | None, str]:
    """(where they are now, ""), or (None, why they could not be kept).

    Only what is whole: others would take a part of it for all there is, and never measure the rest. What was compiled lies in Triton's
    cache, so the next tuning gets further in the same time.
    """
    tried, total = tuned.count()
    if tried < total:
        why = "; ".join(tuned.complaints) or "time or memory was short"
        return None, f"{total - tried} of {total} candidates were not run: {why}"
    folder = find_folder()
    if folder is None:
        return None, "there is no home directory"
    path = folder / _name(tuned.case, tuned.place)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, {"v": SCHEMA, "time": time.time(), **asdict(tuned), "case": tuned.case.record()})
    except OSError as error:
        return None, str(error)
    return path, ""


def check_tiles(given: Any, case: Case) -> dict[str, Tile]:
    """The same; ValueError where they are not one candidate for each kernel there is."""
    if not isinstance(given, dict):
        raise ValueError("it holds no tiles")
    for kernel in given.keys() - KERNELS.keys():
        raise ValueError(f"there is no kernel {_shorten(repr(kernel))} any more")
    tiles = {}
    for kernel in case.kernels:
        if kernel not in given:
            raise ValueError(f"it holds no tile of {kernel}")
        # The candidate itself: what is equal to it may be 64.0.
        tile = next((each for each in case.candidates(kernel) if each == given[kernel]), None)
        if tile is None:
            raise ValueError(f"{_shorten(str(given[kernel]))} is no tile that {kernel} may have")
        tiles[kernel] = tile
    return tiles


def _check_tried(times: Any, case: Case) -> None:
    """ValueError where there is a candidate that was none yet when others were timed."""
    for kernel in case.kernels:
        tried = times.get(kernel) if isinstance(times, dict) else None
        before = [each[0] for each in tried or [] if isinstance(each, list) and each]
        for tile in case.candidates(kernel):
            if tile not in before:
                raise ValueError(f"it was tuned before there was {kernel} {describe(tile)}")


def _shorten(text: str) -> str:
    """Whatever lies in a file: the reason stands in events and checkpoints."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _name(case: Case, place: Place) -> str:
    """For people, but for its end."""
    whole = json.dumps([case.record(), asdict(place)], sort_keys=True)
    sizes = f"{case.rows}x{case.length}-{case.heads}x{case.groups}x{case.head_width}-{case.dtype}"
    return f"{sizes}-{hashlib.sha256(whole.encode()).hexdigest()[:12]}.json"
