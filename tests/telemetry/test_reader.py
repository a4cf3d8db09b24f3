"""A run directory is read back: rows of the attempts that count, and a checked-in run of every version."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import UsageError
from paceline.telemetry.reader import latest_attempt, plan_starts, read_run

EXAMPLE = Path(__file__).parent.parent / "data" / "run-v1"


def rows(*pairs: tuple[int, int]) -> list[dict[str, Any]]:
    return [{"attempt": attempt, "step": step} for attempt, step in pairs]


def pairs(found: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["attempt"], row["step"]) for row in found]


def test_a_later_attempt_replaces_what_follows_its_start() -> None:
    written = rows((1, 10), (1, 20), (1, 30), (2, 25), (2, 35))
    assert pairs(latest_attempt(written, {1: 0, 2: 20}, "step")) == [(1, 10), (1, 20), (2, 25), (2, 35)]


def test_one_that_starts_again_replaces_everything() -> None:
    written = rows((1, 10), (1, 20), (1, 30), (2, 15))
    assert pairs(latest_attempt(written, {1: 0, 2: 0}, "step")) == [(2, 15)]


def test_an_attempt_that_never_got_to_its_plan_replaces_nothing() -> None:
    written = rows((1, 10), (1, 20))
    assert pairs(latest_attempt(written, {1: 0}, "step")) == [(1, 10), (1, 20)]


def test_three_attempts_in_any_order() -> None:
    written = rows((3, 15), (1, 10), (2, 20), (1, 20), (2, 30), (3, 25))
    assert pairs(latest_attempt(written, {1: 0, 2: 10, 3: 10}, "step")) == [(1, 10), (3, 15), (3, 25)]


def test_the_evaluation_before_the_first_step_counts_once() -> None:
    written = [row | {"split": "validation"} for row in rows((1, 0), (2, 0))]
    assert pairs(latest_attempt(written, {1: 0, 2: 0}, "step", "split")) == [(2, 0)]


def test_splits_of_one_step_stay_apart() -> None:
    written = [{"attempt": 1, "step": 5, "split": split} for split in ("validation", "test")]
    assert latest_attempt(written, {1: 0}, "step", "split") == written


def test_a_run_of_the_first_version_reads_as_ever() -> None:
    run = read_run(EXAMPLE)
    assert (run.run.state, run.run.reason) == ("finished", "length")
    assert [(a.state, a.step, a.exit_code) for a in run.run.attempts] == [("stopped", 2, 130), ("finished", 18, 0)]
    assert pairs(run.metrics) == [(2, 4), (2, 8), (2, 12), (2, 16), (2, 18)]
    assert run.metrics[-1]["loss"] == 3.246435749287508
    assert run.metrics[-1]["mfu"] is None
    assert [(row["step"], row["split"]) for row in run.validation[-2:]] == [(18, "validation"), (18, "test")]
    assert run.validation[-1]["ndcg_10"] == 0.3149414405248461
    (precision,) = run.events_of("choice", about="precision.mode", attempt=2)
    assert (precision["requested"], precision["effective"]) == ("auto", "fp32")
    assert [(beat["attempt"], beat["step"], beat["phase"]) for beat in run.beats(1)] == [
        (1, 0, "start"),
        (1, 2, "end"),
        (2, 0, "start"),
        (2, 18, "end"),
    ]
    assert run.environment()["cpu"]["cores"] == 2


def test_its_ledger_has_every_sample_of_an_epoch_once() -> None:
    lines = [line for line in read_run(EXAMPLE).ledger() if line["attempt"] == 2 and line["epoch"] == 0]
    assert {line["rank"] for line in lines} == {0, 1}
    ids = [sample for line in lines for sample in line["ids"]]
    assert len(ids) == len(set(ids)) == 36


def test_what_was_not_written_is_empty(tmp_path: Path) -> None:
    shutil.copy(EXAMPLE / "run.json", tmp_path)
    run = read_run(tmp_path)
    assert (run.metrics, run.validation, run.events, run.beats(0), run.ledger()) == ([], [], [], [], [])


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no run\.json"):
        read_run(tmp_path)


def test_rows_that_do_not_say_their_attempt_or_step_count_for_nothing() -> None:
    written = [{"step": 1}, {"attempt": None, "step": 2}, {"attempt": 1, "step": "x"}, {"attempt": 1, "step": 3}]
    assert pairs(latest_attempt(written, {}, "step")) == [(1, 3)]


def test_plans_that_say_nothing_are_passed_over() -> None:
    plans = [{"kind": "plan"}, {"kind": "plan", "attempt": 1}, {"kind": "plan", "attempt": 2, "start_step": None}]
    assert plan_starts([*plans, {"kind": "plan", "attempt": 3, "start_step": 7}, {"attempt": 4}]) == {1: 0, 3: 7}


def test_the_last_beat_of_each_rank(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "run")
    run = read_run(tmp_path / "run")
    with open(run.layout.heartbeat(1), "a") as file:
        file.writelines(f'{{"rank":1,"step":{step},"pad":"{"é" * 300}"}}\n' for step in range(300))
        file.write('{"rank":1,"st')  # a torn tail
    assert [(beat["rank"], beat["step"]) for beat in run.last_beats()] == [(0, 18), (1, 299)]


def test_the_last_word_on_each_choice_and_none_that_says_nothing() -> None:
    run = read_run(EXAMPLE)
    said = {"kind": "choice", "attempt": 1, "about": "device", "effective": "cpu"}
    odd = [{"about": "device"}, {"effective": "cuda"}, {"about": ["device"], "effective": "cuda"}]
    later = {"attempt": 2, "effective": "cuda:0"}
    run.events[:] = [said, *({"kind": "choice", **each} for each in odd), {"kind": "plan", "about": "device"}]
    assert run.choices() == {"device": said}
    run.events.append(said | later)
    assert run.choices() == {"device": said | later}
    assert run.choices(attempt=1) == {"device": said}
