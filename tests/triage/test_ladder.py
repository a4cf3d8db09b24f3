"""Ladders as YAML: the shipped ones, somebody's own, and what is wrong with a bad one."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.config.describe import describe
from paceline.config.sections import RunConfig
from paceline.errors import ConfigError, UsageError
from paceline.triage.ladder import PRICES, SYMPTOMS, load_ladder


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_a_shipped_ladder_is_climbed_from_the_cheapest(symptom: str) -> None:
    ladder = load_ladder(symptom)
    assert ladder.config.symptom == symptom
    prices = [PRICES.index(rung.price) for rung in ladder.rungs]
    assert prices == sorted(prices)
    assert all(rung.why for rung in ladder.rungs)
    known = describe(RunConfig).keys() | {"data.max_length"}  # a recipe's own
    assert {name for rung in ladder.rungs for name in rung.set} | set(ladder.config.set) <= known


def test_the_ladders_have_what_the_cheat_sheets_have() -> None:
    names = {symptom: {key for rung in load_ladder(symptom).rungs for key in rung.set} for symptom in SYMPTOMS}
    assert names["deadlock"] >= {
        *("parallel.compression", "parallel.bucket_mb", "parallel.static_graph", "parallel.find_unused"),
        *("data.num_workers", "train.activation_checkpointing", "launch.debug", "attention.impl"),
        *("train.compile.enabled", "parallel.backend", "launch.nproc"),
    }
    assert names["out_of_memory"] >= {"train.micro_batch", "parallel.zero_stage", "data.max_length", "precision.mode"}
    assert names["instability"] >= {"train.optimizer.lr", "train.schedule.warmup_steps", "train.clip_norm"}
    assert names["low_throughput"] >= {"parallel.bucket_mb", "data.prefetch", "train.compile.enabled"}


def test_a_ladder_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "symptom: deadlock\nsteps: 12\nrungs:\n"
        "  - {name: dear, set: {launch.nproc: 1}, price: large}\n"
        "  - {name: cheap, set: {parallel.bucket_mb: 100}, price: free}\n"
    )
    ladder = load_ladder(str(path))
    assert [rung.name for rung in ladder.rungs] == ["cheap", "dear"]
    with pytest.raises(UsageError, match="no ladder"):
        load_ladder("deadlok")


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "symptom: deadlock\nrungs:\n"
        "  - {name: a, set: {launch.nproc: 1}, when: 'world_size >'}\n"
        "  - {name: a, set: {launch.nproc: '= world_size **'}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_ladder(str(path))
    words = " ".join(problem.what for problem in caught.value.problems)
    assert "two rungs are called 'a'" in words
    assert words.count("expected") == 2
