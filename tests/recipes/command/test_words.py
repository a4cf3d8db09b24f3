"""A script's command line: what its words stand for, and which settings do nothing for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.errors import ConfigError
from paceline.recipes.command.words import check_given, render_argv, samples_per_step
from paceline.recipes.job import load_job

WORDS = [
    "command.argv=[python, x.py, '--lr={params.lr}', '{params.name}', '--json={\"a\": 1}', '{run.seed}/{launch.nproc}', '{run.out}', '{train.global_batch}']",
    "command.params={lr: 1e-3, name: a b}",
    "command.samples_per_step='{train.global_batch}'",
]


def test_words_stand_for_values_and_other_braces_stay() -> None:
    config = load_job("command", [*WORDS, "run.seed=7"], environ={}).config
    words = render_argv(config, Path("/runs/a"), world_size=2, port=5)
    assert words == ["python", "x.py", "--lr=0.001", "a b", '--json={"a": 1}', "7/2", "/runs/a", "128"]
    assert samples_per_step(config) == 128


def test_a_parameter_is_typed_by_the_name_that_the_words_use() -> None:
    job = load_job("command", [WORDS[0], WORDS[2], "params.lr=0.5", "params.name=a"], environ={})
    assert "--lr=0.5" in render_argv(job.config, Path("/runs/a"), world_size=1, port=5)


def test_a_setting_has_an_effect_where_a_word_names_it() -> None:
    words = [*WORDS, "train.global_batch=9", "train.micro_batch=3", "supervise.max_restarts=1"]
    job = load_job("command", [*words, "supervise.stall_floor_s=9", "supervise.compile_limit_s=9"], environ={})
    assert [name for name, _ in job.idle(job.given)] == ["supervise.compile_limit_s", "train.micro_batch"]


def test_a_word_that_stands_for_nothing_is_refused_before_the_script_is_started() -> None:
    words = "command.argv=[python, x.py, '--steps={train.max_steps}']"
    config = load_job("command", [words], environ={}).config
    with pytest.raises(ConfigError, match=r"train\.max_steps is null"):
        check_given(config)
    check_given(load_job("command", [words, "train.max_steps=3"], environ={}).config)
