"""Tunes the tiles of the sparse kernels for some shapes, keeps the fastest for later runs, and says what was measured; one line of JSON.

python -m paceline.bench.nsa_tiles --length 8192 --rows 4 --heads 12 --groups 2 --width 64 --precision bf16
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from paceline.bench.answering import answer, end
from paceline.engine.precision import DTYPES
from paceline.errors import UsageError
from paceline.recipes.nsa.config import Model
from paceline.recipes.nsa.kernels.hopper import has_hopper
from paceline.recipes.nsa.kernels.launching import MOST_ROWS
from paceline.recipes.nsa.kernels.tile_store import Case, Tuned, save_tuned
from paceline.recipes.nsa.kernels.tiles import Tile, describe, find_shared
from paceline.recipes.nsa.kernels.tuning import tune
from paceline.recipes.nsa.paths import fast_refusal

LENGTH = 8192
"""where none is asked for"""


def measure(lengths: Sequence[int], rows: int, model: Model, precision: str, repeats: int) -> dict[str, Any]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu", 0)
    refusal = fast_refusal(device.type, model)
    if refusal:
        do = "leave --tune away, or run it on a GPU that has kernels, with sizes that they take (docs/nsa-kernels.md)"
        raise UsageError(f"there are no tiles to tune: {refusal}", "--tune", do)
    if rows * model.heads > MOST_ROWS:
        what = f"--rows {rows} × --heads {model.heads} = {rows * model.heads:,}, and the kernels take {MOST_ROWS:,}"
        raise UsageError(what, "--rows, --heads", f"fewer of either: --rows {max(1, MOST_ROWS // model.heads)}")
    dtype = str(DTYPES[precision]).removeprefix("torch.")
    sizes = (rows, LENGTH, model.heads, model.groups, model.head_width)
    usual = Case(*sizes, dtype, hopper=has_hopper(device), shared=find_shared(device))
    cases = [replace(usual, length=length) for length in lengths or [LENGTH]]
    return {"cases": [report(tune(case, device, repeats=repeats)) for case in cases]}


def report(tuned: Tuned) -> dict[str, Any]:
    """What was measured, kept for later runs; or why it could not be kept."""
    path, problem = save_tuned(tuned)
    kernels = [_summarise(kernel, tried, tuned.tiles[kernel]) for kernel, tried in tuned.times.items()]
    return {
        "case": tuned.case.record(),
        "about": str(tuned.case),
        "place": str(tuned.place),
        "kernels": kernels,
        "refused": list(tuned.refused),
        "file": None if path is None else str(path),
        "problem": problem,
    }


def _summarise(kernel: str, tried: Sequence[tuple[Tile, float | None]], fastest: Tile) -> dict[str, Any]:
    built_in, its_ms = tried[0]
    return {
        "kernel": kernel,
        "built_in": describe(built_in),
        "built_in_ms": its_ms,
        "fastest": describe(fastest),
        "fastest_ms": next(ms for tile, ms in tried if tile == fastest),
        "tried": len(tried),
        "measured": sum(ms is not None for _, ms in tried),
    }


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m paceline.bench.nsa_tiles", allow_abbrev=False)
    parser.add_argument("--length", type=int, action="append", default=[])
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--precision", choices=("bf16", "fp16"), default="bf16")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args(argv)
    model = Model(heads=given.heads, groups=given.groups, head_width=given.width)
    return answer(lambda: measure(given.length, given.rows, model, given.precision, given.repeats))


if __name__ == "__main__":
    end(main)
