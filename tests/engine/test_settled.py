"""What a workload settles: rank 0's for all ranks, kept in checkpoints, and given back at every later start."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.engine.asking import ask_first
from paceline.engine.build import _settle, build_trainer
from paceline.engine.checkpoint.reading import read_state
from paceline.engine.ranks import Ranks
from paceline.engine.state import TrainState
from paceline.errors import CheckpointError, ConfigError
from paceline.files import read_json, read_records, write_json
from paceline.telemetry.checkpoints import read_checkpoint
from paceline.workload import Choice, Setting
from tests.engine.conftest import Regression, build_context

SECTIONS = {
    "train": {"max_steps": 2, "global_batch": 8, "micro_batch": 4},
    "checkpoint": {"every_steps": 1},
    "telemetry": {"tensorboard": False},
    "evaluate": {"every_epochs": None},
}


class Finds(Regression):
    """Goes by what it finds at its first start."""

    def __init__(self, found: str) -> None:
        super().__init__()
        self.found = found
        self.settings: list[Setting] = []

    def settle(self, setting: Setting, before: Mapping[str, Any]) -> Mapping[str, Any]:
        return before or {"found": self.found, "precision": setting.precision, "rows": setting.micro_batch}

    def keep(self, setting: Setting, before: Mapping[str, Any]) -> Mapping[str, Any]:
        return before

    def choices(self, setting: Setting) -> list[Choice]:
        return [Choice("found", "auto", setting.settled["found"], "a test")]

    def build_model(self, setting: Setting):
        self.settings.append(setting)
        return super().build_model(setting)


def start(context, found: str) -> Finds:
    workload = Finds(found)
    trainer = build_trainer(context, workload)
    trainer.run()
    trainer.close()
    return workload


def test_a_resumed_run_goes_by_what_the_first_start_settled(make_context) -> None:
    context = make_context(SECTIONS)
    (setting,) = start(context, "this").settings
    assert setting.settled == {"found": "this", "precision": "fp32", "rows": 4}
    checkpoint = read_checkpoint(context.layout.checkpoints / "step_00000002")
    assert read_state(checkpoint).settled == setting.settled
    longer = SECTIONS | {"train": SECTIONS["train"] | {"max_steps": 4}}
    (again,) = start(make_context(longer), "that").settings
    assert again.settled == setting.settled
    assert read_state(read_checkpoint(context.layout.checkpoints / "step_00000004")).settled == setting.settled
    told = [event["effective"] for event in read_records(context.layout.events) if event.get("about") == "found"]
    assert told == ["this", "this"]


def test_older_checkpoints_have_settled_nothing(make_context) -> None:
    context = make_context(SECTIONS)
    start(context, "this")
    checkpoint = read_checkpoint(context.layout.checkpoints / "step_00000002")
    path = checkpoint.path / "state.json"
    content = read_json(path)
    del content["settled"]
    write_json(path, content)
    assert read_state(checkpoint).settled == {}
    write_json(path, content | {"settled": "this"})
    with pytest.raises(CheckpointError, match="settled is 'this'"):
        read_state(checkpoint)


def ask_all(ranks: Ranks) -> None:
    assert ask_first(ranks, lambda: {"found": f"on rank {ranks.rank}"}) == {"found": "on rank 0"}

    def refuse() -> dict[str, Any]:
        raise ConfigError("this cannot be had", "here", "do without")

    with pytest.raises(ConfigError, match="this cannot be had"):
        ask_first(ranks, refuse)


def find_different_things(ranks: Ranks) -> None:
    with tempfile.TemporaryDirectory() as root:
        context, state = replace(build_context(Path(root)), ranks=ranks), TrainState()
        setting = Setting(ranks.device, "sdpa")
        found = _settle(context, Finds(f"on rank {ranks.rank}"), setting, state)
    assert found == state.settled
    assert found["found"] == "on rank 0"


@pytest.mark.timeout(120)
def test_what_rank_0_finds_counts_for_all(on_ranks) -> None:
    on_ranks(2, ask_all)
    on_ranks(2, find_different_things)
