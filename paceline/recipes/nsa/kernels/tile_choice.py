"""Which tiles a run's kernels have, and why: what it began with, what was tuned for this GPU and shape, or the built-in ones.

    settled = settle_tiles("auto", case, device, before={}, limit_s=240)
    settled["tiles"]["window_forward"]            -> {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 2}
    read_tiles(settled)                           -> Tiles(…)

The numbers are kept with the run, the built-in ones too: neither a cache nor another version's tables change how it goes on, unless kernels
cannot have a tile any more, which the choice says then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from paceline.engine.out_of_memory import is_out_of_memory
from paceline.recipes.nsa.kernels.tile_store import Case, Place, check_tiles, find_place, load_tuned, save_tuned
from paceline.recipes.nsa.kernels.tiles import BUILT_IN, Tile, Tiles, describe
from paceline.workload import Choice

Found = tuple[dict[str, Tile], str, str]
"""tiles by kernel; tuned or built-in; why"""


def settle_tiles(word: str, case: Case, device: torch.device, before: Any, limit_s: float) -> dict[str, Any]:
    """For all ranks and later starts, as JSON. `word` is that of model.tiles, `before` what the run settled at its start."""
    place = find_place(device)
    lost = ""
    if before:
        try:
            return _keep(before, word, case, place)
        except (ValueError, TypeError, KeyError) as error:
            lost = f"not those that this run began with: {error}; "
    tiles, source, reason = _choose(word, case, place, device, limit_s)
    return {
        "word": word,
        "gpu": place.gpu,
        "case": case.record(),
        "tiles": {kernel: dict(tile) for kernel, tile in tiles.items()},
        "source": source,
        "reason": lost + reason,
    }


def keep_tiles(case: Case, device: torch.device, before: Any) -> dict[str, Any]:
    """What `settle_tiles` gave a run, for its trained model; empty where this GPU or this version cannot have it."""
    try:
        return _keep(before, before["word"], case, find_place(device))
    except (ValueError, TypeError, KeyError):
        return {}


def _keep(before: Any, word: str, case: Case, place: Place) -> dict[str, Any]:
    """The same tiles; ValueError where something else is asked for, or they are not for this place."""
    if before["word"] != word:
        raise ValueError(f"model.tiles was {before['word']}")
    if before["gpu"] != place.gpu:
        raise ValueError(f"they were for {before['gpu']}")
    # Another number of ranks may mean other micro-batches, and no other tiles.
    if {**before["case"], "rows": case.rows} != case.record():
        raise ValueError("they were for another shape or precision")
    # In the order of that time, and with its reason: checkpoints of a run that was interrupted are those of one that was not, to the byte.
    kept = {name: before[name] for name in ("word", "gpu", "case", "tiles", "source", "reason")}
    told = {name: str(before[name]) for name in ("source", "reason")}
    return kept | told | {"tiles": check_tiles(before["tiles"], case)}


def _choose(word: str, case: Case, place: Place, device: torch.device, limit_s: float) -> Found:
    built_in = {kernel: case.candidates(kernel)[0] for kernel in case.kernels}
    if word == "built-in":
        return built_in, "built-in", "as requested"
    if case.torch_dtype == torch.float32:
        return built_in, "built-in", "there are no others in fp32"
    found, where = load_tuned(case, place, whole=word == "tune")
    if found is not None:
        return found, "tuned", f"tuned for {place}, in {where}"
    if word == "auto":
        return built_in, "built-in", where
    tiles, source, reason = _tune(case, device, built_in, limit_s)
    return tiles, source, f"{where}; {reason}"


def _tune(case: Case, device: torch.device, built_in: dict[str, Tile], limit_s: float) -> Found:
    # What is measured with is not imported by runs that measure nothing.
    from paceline.recipes.nsa.kernels.tuning import tune

    try:
        tuned = tune(case, device, limit_s)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return built_in, "built-in", "no memory to tune"
    path, problem = save_tuned(tuned)
    tried, total = tuned.count()
    kept = f"kept in {path}" if path else f"not kept for other runs: {problem}"
    refused = "".join(f"; refused: {each}" for each in tuned.refused)
    counted = f"{tried} of {total} candidates tried"
    return dict(tuned.tiles), "tuned", f"tuned before the first step, {counted}, {kept}{refused}"


def read_tiles(settled: Mapping[str, Any]) -> Tiles:
    """Of what `settle_tiles` gave; the built-in ones where there is nothing."""
    return Tiles(settled["tiles"], getattr(torch, settled["case"]["dtype"])) if settled else BUILT_IN


def tell_tiles(word: str, settled: Mapping[str, Any]) -> list[Choice]:
    """Where they come from, and what they are."""
    told = [f"{kernel} {describe(tile)}" for kernel, tile in settled["tiles"].items()]
    if not any(kernel.startswith("selected") for kernel in settled["tiles"]):
        told.append("selected by the kernels for Hopper, which have none")
    listed = ", ".join(told)
    return [
        Choice("model.tiles", word, settled["source"], f"settled for this run: {settled['reason']}"),
        Choice("attention.tiles", word, listed, f"for {settled['gpu']}"),
    ]
