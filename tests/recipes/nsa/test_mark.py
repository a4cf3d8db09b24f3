"""Ranges, in a profile and of NVTX: one per stage, in the order in which a layer runs them, in training, for a prompt and for each token after it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from paceline.recipes.job import load_job
from paceline.recipes.nsa.attention import Shape
from paceline.recipes.nsa.decoder import Decoder
from paceline.recipes.nsa.model import LanguageModel
from paceline.recipes.nsa.torch_path import TORCH
from paceline.recipes.nsa.workload import NsaWorkload
from paceline.workload import Setting
from tests.recipes.nsa.attentions import SMALL

BRANCHES = ["nsa compressed", "nsa select", "nsa selected", "nsa window", "nsa mix"]
LAYER = ["nsa compress", *BRANCHES]


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every range that was opened; none may be inside another."""
    opened: list[str] = []
    inside: list[str] = []

    @contextlib.contextmanager
    def note(name: str) -> Iterator[None]:
        assert not inside, f"{name} inside {inside}"
        opened.append(name)
        inside.append(name)
        yield
        inside.remove(name)

    monkeypatch.setattr(torch.profiler, "record_function", note)
    return opened


def build(is_marked: bool, layers: int = 2) -> LanguageModel:
    return LanguageModel(50, layers, Shape(32, 4, 2, 8, SMALL), 64, stages=TORCH, is_marked=is_marked)


def make_batch(length: int) -> dict[str, torch.Tensor]:
    tokens = torch.arange(length)[None] % 50
    return {"input_ids": tokens, "labels": tokens, "positions": torch.arange(length)[None].int()}


def test_a_forward_has_a_range_for_each_stage_of_each_layer(ranges: list[str]) -> None:
    build(is_marked=True)(make_batch(40)).backward()
    assert ranges == LAYER * 2


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_forward_has_the_same() -> None:
    model = build(is_marked=True)
    torch._dynamo.reset()
    compiled = torch.compile(lambda batch: model(batch), backend="eager")
    compiled(make_batch(40))
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
        compiled(make_batch(40))
    counts = {row.key: row.count for row in profiler.key_averages()}
    assert {name: counts.get(name) for name in LAYER} == dict.fromkeys(LAYER, 2)


def test_decoding_has_the_same_and_compresses_when_a_block_is_whole(ranges: list[str]) -> None:
    decoder = Decoder(build(is_marked=True, layers=1))
    decoder.prefill(torch.zeros(1, 18, dtype=torch.int64))
    assert ranges == ["nsa compress", *LAYER], "for the cache, and for the prompt itself"
    seen = []
    for _ in range(4):
        ranges.clear()
        decoder.step(torch.zeros(1, dtype=torch.int64))
        seen.append(list(ranges))
    # Blocks of 8 every 4: the next one ends with the 20th token.
    assert seen == [BRANCHES, LAYER, BRANCHES, BRANCHES]


def test_before_the_first_block_there_is_nothing_to_compress(ranges: list[str]) -> None:
    decoder = Decoder(build(is_marked=True, layers=1))
    decoder.prefill(torch.zeros(1, 3, dtype=torch.int64))
    ranges.clear()
    decoder.step(torch.zeros(1, dtype=torch.int64))
    assert ranges == BRANCHES


def test_without_marks_nothing_is_opened(ranges: list[str]) -> None:
    model = build(is_marked=False)
    model(make_batch(40))
    decoder = Decoder(model)
    decoder.prefill(torch.zeros(1, 18, dtype=torch.int64))
    decoder.step(torch.zeros(1, dtype=torch.int64))
    assert ranges == []


@pytest.mark.parametrize(
    ("words", "is_marked"),
    [
        ([], False),
        (["telemetry.profile.start_step=3"], True),
        # What is profiled is what else runs: marks would keep the compiler out.
        (["telemetry.profile.start_step=3", "train.compile.enabled=true"], False),
    ],
)
def test_a_profile_shows_the_stages(ranges: list[str], words: list[str], is_marked: bool) -> None:
    job = load_job("nsa", ["data.source=synthetic", "data.length=64", "data.samples=4", "model.layers=1", *words])
    model = NsaWorkload(job.config).build_model(Setting(torch.device("cpu"), "own"))
    model(make_batch(40)).backward()
    assert bool(ranges) == is_marked
