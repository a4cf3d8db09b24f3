"""run.json: comes back as it was written; a newer or damaged one is refused; every older one stays readable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import UsageError
from paceline.telemetry.layout import SCHEMA, RunLayout
from paceline.telemetry.run_file import STATES, Attempt, AttemptHost, RunFile, load_run_file

OLD_RUNS = sorted((Path(__file__).parent.parent / "data").glob("run-v*"))


def example() -> RunFile:
    run = RunFile("a1b2c3", "sasrec", "", "0.1.0", 1.5, {"fingerprint": "ff", "values": {"run.seed": 0}})
    run.attempts.append(Attempt(1, 2, 4711, 2.5, "pulses", ["paceline", "train", "sasrec"]))
    return run


def test_it_comes_back_as_it_was_written(tmp_path: Path) -> None:
    example().save(RunLayout(tmp_path))
    assert load_run_file(tmp_path) == example()
    assert json.loads((tmp_path / "run.json").read_text())["v"] == SCHEMA


def test_which_ranks_are_on_which_host_comes_back_and_need_not_be_there(tmp_path: Path) -> None:
    run = example()
    assert (run.attempts[0].has_several_hosts, run.attempts[0].host_of(1)) == (False, None)
    run.attempts[0].hosts = [AttemptHost(0, "a", "10.0.0.1", 0, 1), AttemptHost(1, "b", "10.0.0.2", 1, 1)]
    run.save(RunLayout(tmp_path))
    loaded = load_run_file(tmp_path)
    assert loaded == run
    assert loaded is not None
    assert (loaded.attempts[0].has_several_hosts, loaded.attempts[0].host_of(1)) == (True, "b")
    content = json.loads((tmp_path / "run.json").read_text())
    del content["attempts"][0]["hosts"]
    (tmp_path / "run.json").write_text(json.dumps(content))
    assert load_run_file(tmp_path) == example()
    for damaged in ([{}], [7], ["b"], {"a": 1}, [{"index": "0"}]):
        content["attempts"][0]["hosts"] = damaged
        (tmp_path / "run.json").write_text(json.dumps(content))
        with pytest.raises(UsageError, match=r"run\.json is damaged"):
            load_run_file(tmp_path)


def test_no_run_here(tmp_path: Path) -> None:
    assert load_run_file(tmp_path) is None
    assert load_run_file(tmp_path / "gone") is None
    (tmp_path / "file").write_text("")
    assert load_run_file(tmp_path / "file") is None


def test_a_newer_version_is_refused_with_both_numbers(tmp_path: Path) -> None:
    example().save(RunLayout(tmp_path))
    content = json.loads((tmp_path / "run.json").read_text()) | {"v": SCHEMA + 1, "unheard_of": True}
    (tmp_path / "run.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=f"version {SCHEMA + 1}.*up to {SCHEMA}"):
        load_run_file(tmp_path)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "7", "{}", '{"v": "x"}', '{"v": 1}', '{"v": 1, "attempts": [{}]}', '{"v": 1, "attempts": []}'],
)
def test_a_damaged_one_is_refused_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(UsageError, match=r"run\.json is damaged") as caught:
        load_run_file(tmp_path)
    assert caught.value.problems[0].where == str(tmp_path / "run.json")
    assert caught.value.problems[0].do == "restore it from a copy, or start the run anew in another directory"


def test_there_is_an_example_of_every_version() -> None:
    assert [path.name for path in OLD_RUNS] == [f"run-v{version}" for version in range(1, SCHEMA + 1)]


@pytest.mark.parametrize("root", OLD_RUNS, ids=lambda root: root.name)
def test_old_ones_are_still_readable(root: Path) -> None:
    run = load_run_file(root)
    assert run is not None
    assert run.recipe == "sasrec"
    assert run.state in STATES
    assert [attempt.attempt for attempt in run.attempts] == list(range(1, len(run.attempts) + 1))


def test_fields_of_a_newer_version_are_passed_over(tmp_path: Path) -> None:
    content = json.loads((OLD_RUNS[0] / "run.json").read_text())
    content["colour"] = "blue"
    content["attempts"][0]["mood"] = 7
    (tmp_path / "run.json").write_text(json.dumps(content))
    assert load_run_file(tmp_path) == load_run_file(OLD_RUNS[0])


@pytest.mark.parametrize(
    "change",
    [{"v": 1e999}, {"name": True}, {"created": "now"}, {"parent": [1]}, {"attempts": {"a": 1}}, {"attempt": {"ended": "x"}}, {"attempt": {"argv": None}}],
)  # fmt: skip
def test_values_of_another_kind_are_damage(tmp_path: Path, change: dict[str, Any]) -> None:
    content = json.loads((OLD_RUNS[0] / "run.json").read_text())
    content["attempts"][0] |= change.pop("attempt", {})
    (tmp_path / "run.json").write_text(json.dumps(content | change))
    with pytest.raises(UsageError, match=r"run\.json is damaged"):
        load_run_file(tmp_path)
