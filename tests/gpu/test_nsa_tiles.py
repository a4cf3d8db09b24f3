"""Tiles of the sparse kernels on a GPU: each computes the same, they are tuned and kept, a run goes on with its own, and a second process
compiles nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.recipes.nsa.kernels import past_attention
from paceline.recipes.nsa.kernels.fast_path import FAST
from paceline.recipes.nsa.kernels.hopper import has_hopper
from paceline.recipes.nsa.kernels.stage_runs import draw_inputs
from paceline.recipes.nsa.kernels.tile_store import Case, find_place, load_tuned, save_tuned
from paceline.recipes.nsa.kernels.tile_trials import prepare_pass
from paceline.recipes.nsa.kernels.tiles import KERNELS, find_shared
from paceline.recipes.nsa.kernels.tuning import Timer, tune
from paceline.recipes.nsa.pattern import Pattern
from tests.recipes.nsa.attentions import relative_error

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), pytest.mark.usefixtures("backward_thread")]

DEVICE = torch.device("cuda", 0)
SMALL = Pattern(block=16, stride=8, selection_block=32, selected=4, window=100)


@pytest.mark.parametrize("kernel", KERNELS)
def test_whatever_the_tile_it_computes_the_same(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernel in ("selected_forward", "selected_gradient"):
        # Or these rows, as short as they are, would be read by words, and no tile of these launched.
        monkeypatch.setattr(past_attention, "MOST_BLOCKS", 0)
    pattern = replace(SMALL, selection_block=64) if kernel == "selected_past_key_gradient" else SMALL
    case = Case(2, 700, 12, 2, 64, "bfloat16", pattern, hopper=has_hopper(DEVICE), shared=find_shared(DEVICE))
    inputs = draw_inputs(case, FAST, DEVICE)
    tiles = case.candidates(kernel)
    timer = Timer(inputs, repeats=1)
    few = (tiles[0], tiles[len(tiles) // 2], tiles[-1])
    fitting = [tile for tile in few if timer(kernel, tile) is not None]
    assert timer.refused == []
    assert len(fitting) >= 2, "no other tile fits"
    first, *others = (prepare_pass(inputs, kernel, tile)() for tile in fitting)
    for mine, of_first in ((mine, of_first) for other in others for mine, of_first in zip(other, first, strict=True)):
        if kernel == "select":
            assert (mine != of_first).any(-1).float().mean() < 0.01, "but for near-ties"
        else:
            assert relative_error(mine, of_first) < 1e-2


def test_tiles_are_tuned_kept_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    hopper = has_hopper(DEVICE)
    case = Case(1, 4096, 12, 2, 64, "bfloat16", hopper=hopper, shared=find_shared(DEVICE))
    assert ("selected_forward" in case.kernels) != hopper
    tuned = tune(case, DEVICE, repeats=3)
    for kernel, tried in tuned.times.items():
        measured = [ms for _, ms in tried if ms is not None]
        print(
            kernel,
            tuned.tiles[kernel],
            f"{min(measured):.3f} of {tried[0][1]:.3f} ms,",
            len(measured),
            "of",
            len(tried),
        )
        assert tried[0][1] is not None, "the built-in tile fits"
        assert len(measured) > 1
    path, problem = save_tuned(tuned)
    assert path is not None, problem
    assert load_tuned(case, find_place(DEVICE)) == (tuned.tiles, str(path))


def train(root: Path, cache: Path, steps: int) -> dict[str, Any]:
    """The choices of its newest attempt."""
    argv = [sys.executable, "-m", "paceline", "train", "nsa", "data.length=512", "data.documents=64", "model.width=128"]
    argv += ["model.layers=1", "model.heads=4", "model.groups=2", "model.head_width=64", "model.sparse=always"]
    argv += ["model.tiles=auto", "precision.mode=bf16", "train.global_batch=4", f"train.max_steps={steps}"]
    argv += ["train.schedule.warmup_steps=0", "evaluate.every_epochs=null", "--out", str(root)]
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    events = [json.loads(line) for line in (root / "events.jsonl").read_text().splitlines()]
    return {event["about"]: event for event in events if event["kind"] == "choice"}


def test_a_training_takes_what_was_tuned_and_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, cache = tmp_path / "run", tmp_path / "cache"
    first = train(root, cache, 2)
    assert first["model.tiles"]["effective"] == "built-in"
    settled = json.loads((root / "checkpoints" / "latest" / "state.json").read_text())["settled"]["tiles"]
    pattern = Pattern(**settled["case"]["pattern"])
    case = Case(**settled["case"] | {"pattern": pattern}, hopper=has_hopper(DEVICE), shared=find_shared(DEVICE))
    # Somebody tunes afterwards: the run is not changed by it, and the next one is.
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    save_tuned(tune(case, DEVICE, repeats=1))
    again = train(root, cache, 4)
    assert again["attention.tiles"]["effective"] == first["attention.tiles"]["effective"]
    assert again["model.tiles"]["reason"] == first["model.tiles"]["reason"]
    other = train(tmp_path / "other", cache, 2)
    assert other["model.tiles"]["effective"] == "tuned"


_LAYER = """
import torch
from paceline.recipes.nsa.attention import Shape, SparseAttention
from paceline.recipes.nsa.kernels.fast_path import FAST
from paceline.recipes.nsa.pattern import one_document

layer = SparseAttention(Shape(128, 4, 2, 64), FAST).cuda()
hidden = torch.randn(1, {length}, 128, device="cuda", requires_grad=True)
with torch.autocast("cuda", torch.bfloat16):
    layer(hidden, layer.build_frame(one_document(1, {length}, hidden.device), torch.float32)).sum().backward()
torch.cuda.synchronize()
"""


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    def compile_with(length: int) -> set[Path]:
        environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
        script = [sys.executable, "-c", _LAYER.format(length=length)]
        done = subprocess.run(script, capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
        return set(tmp_path.rglob("*.cubin"))

    compiled = compile_with(1000)
    assert len(compiled) > 9
    assert compile_with(1000) == compiled
