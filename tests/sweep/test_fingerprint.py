"""What makes a trial another one: settings, hardware, code and data, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.errors import UsageError
from paceline.recipes.job import Job, load_job
from paceline.sweep.fingerprint import config_digest, describe_surroundings, trial_key
from paceline.sweep.pace import TrialSpan


def script(*words: str) -> Job:
    argv = "command.argv=[python, x.py, '--config={params.config}']"
    return load_job("command", [argv, "command.params={config: a.txt}", *words], environ={})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("x.py", "a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_where_it_lies_and_what_it_is_called_is_no_matter(place: Path) -> None:
    first = load_job("sasrec", ["run.out=here", "run.name=a"], environ={})
    second = load_job("sasrec", ["run.out=there"], environ={})
    assert config_digest(first) == config_digest(second)
    assert config_digest(load_job("sasrec", ["train.micro_batch=3"], environ={})) != config_digest(first)


def test_another_machine_length_or_data_is_another_trial(place: Path) -> None:
    job = load_job("sasrec", environ={})
    here = describe_surroundings([job])
    span, share = TrialSpan(2, 10, 5), [1, 8, 2, 0]
    key = trial_key(job, here, "data", span, share)
    assert key == trial_key(job, describe_surroundings([job]), "data", replace(span, objective="hr_10"), share)
    there = replace(here, hardware=dict(here.hardware) | {"memory_gib": 1})
    newer = replace(here, code=dict(here.code) | {"digest": "x"})
    others = [
        *((there, "data", span, share), (newer, "data", span, share), (here, "other", span, share)),
        *((here, "data", replace(span, steps=11), share), (here, "data", replace(span, window=4), share)),
        (here, "data", span, [4, 2, 2, 0]),
    ]
    assert len({key, *(trial_key(job, *other) for other in others)}) == 7


def test_a_script_counts_by_the_content_of_the_files_that_its_words_name(place: Path) -> None:
    first, second = script(), script("command.stop_grace_s=1")
    before = describe_surroundings([first]).code_digest(first)
    assert describe_surroundings([first, second]).code_digest(second) == before
    # A file of another case is not this one's code: a value added to an axis runs what is new alone.
    other = load_job("command", ["command.argv=[python, x.py, b.txt]"], environ={})
    assert describe_surroundings([first, other]).code_digest(first) == before
    (place / "b.txt").write_text("changed")
    assert describe_surroundings([first, other]).code_digest(first) == before
    (place / "a.txt").write_text("changed")
    assert describe_surroundings([first]).code_digest(first) != before


def test_a_script_that_changes_under_a_sweep_is_noticed(place: Path) -> None:
    job = script()
    surroundings = describe_surroundings([job])
    (place / "x.py").write_text("other")
    with pytest.raises(UsageError, match="was changed while the sweep ran"):
        surroundings.code_digest(job)
