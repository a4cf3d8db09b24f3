"""Climbing, with trials that are made up: what is tried, in which order, and what is said at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import UsageError
from paceline.triage.changes import plan_change
from paceline.triage.climb import Climb, Outcome
from paceline.triage.ladder import Ladder, load_ladder
from paceline.triage.ledger import Ledger
from paceline.triage.page import describe, rows, to_record, write_outcome
from paceline.triage.session import Options, Session
from paceline.triage.subject import find_subject
from paceline.triage.verdict import Verdict

HEALTHY = Verdict("healthy", "", 1000.0, 60)
STALLED = Verdict("stalled", "rank 1 stands still", None, 12)
Settings = Mapping[str, Any]


class Made:
    """Trials that a function decides."""

    def __init__(self, decide: Callable[[Settings], Verdict]) -> None:
        self._decide = decide
        self.tried: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, name: str, settings: Settings) -> tuple[Verdict, Path]:
        self.tried.append((name, dict(settings)))
        return self._decide(settings), Path(f"trials/{len(self.tried):03d}")


def climb(
    tmp_path: Path, made: Made, symptom: str = "deadlock", overrides: tuple[str, ...] = (), nproc: int = 2
) -> Outcome:
    subject = find_subject("sasrec", overrides, {"launch.nproc": (nproc, "a test"), "launch.gpus": ([], "a test")})
    ladder: Ladder = load_ladder(symptom)
    ledger = Ledger(tmp_path / "ledger.jsonl", "key")
    try:
        return Climb(subject, ladder, ledger, made, lambda line: None).run()
    finally:
        ledger.close()


def test_the_first_cure_is_confirmed_by_switching_it_back(tmp_path: Path) -> None:
    made = Made(lambda settings: HEALTHY if settings.get("data.num_workers") == 0 else STALLED)
    outcome = climb(tmp_path, made, overrides=("data.num_workers=2", "data.placement=host"))
    assert outcome.state == "cured"
    assert outcome.cure is not None
    assert outcome.cure.words == "data.num_workers=0"
    assert [name for name, _ in made.tried[-3:]] == [
        *("rung no loader processes", "back no loader processes", "again no loader processes")
    ]
    assert made.tried[-2][1] == {}
    results = {step.name: step.result for step in outcome.steps}
    assert results["as it is"] == "reproduced"
    assert results["compression off"] == "skipped"  # it is none already
    assert results["buckets of 100 MiB"] == "not cured"
    assert "one rank" not in results  # dearer than the cure
    assert describe(outcome)[0].startswith("cured by: no loader processes (data.num_workers=0)")
    assert len(rows(outcome)) == len(outcome.steps)


def test_a_killed_climb_goes_on_where_it_was(tmp_path: Path) -> None:
    cured = Made(lambda settings: HEALTHY if "parallel.static_graph" in settings else STALLED)

    def interrupted(settings: Settings) -> Verdict:
        if len(dying.tried) == 3:
            raise KeyboardInterrupt
        return STALLED

    dying = Made(interrupted)
    with pytest.raises(KeyboardInterrupt):
        climb(tmp_path, dying)
    assert climb(tmp_path, cured).state == "cured"
    assert [name for name, _ in cured.tried] == [
        "rung static graph on",
        "back static graph on",
        "again static graph on",
    ]


def test_two_faults_at_once_are_not_cured(tmp_path: Path) -> None:
    def needs_two(settings: Settings) -> Verdict:
        wanted = {"data.num_workers", "parallel.find_unused"}
        return HEALTHY if wanted <= settings.keys() else STALLED

    made = Made(needs_two)
    outcome = climb(tmp_path, made, overrides=("data.num_workers=2", "data.placement=host"), nproc=4)
    assert outcome.state == "not_cured"
    assert outcome.cure is None
    tried = [set(settings) for _, settings in made.tried]
    assert {"launch.nproc"} in tried  # to the top of the ladder
    assert all(len(keys) <= 1 for keys in tried)
    assert "not cured" in describe(outcome)[0]
    assert [step.name for step in outcome.steps if step.result == "evidence"] == ["collectives checked and told"]


def test_evidence_is_no_cure(tmp_path: Path) -> None:
    outcome = climb(tmp_path, Made(lambda settings: HEALTHY if "launch.debug" in settings else STALLED))
    assert outcome.state == "not_cured"


def test_what_does_not_show_is_not_cured(tmp_path: Path) -> None:
    made = Made(lambda settings: HEALTHY)
    outcome = climb(tmp_path, made)
    assert (outcome.state, len(made.tried)) == ("not_reproduced", 1)


def test_a_symptom_that_comes_and_goes(tmp_path: Path) -> None:
    made = Made(lambda settings: STALLED if len(made.tried) == 1 else HEALTHY)
    assert climb(tmp_path, made).state == "uncertain"


def test_another_trouble_is_no_cure(tmp_path: Path) -> None:
    oom = Verdict("out_of_memory", "no memory")
    made = Made(lambda settings: oom if settings else STALLED)
    assert climb(tmp_path, made).state == "not_cured"


def test_what_is_refused_is_no_symptom(tmp_path: Path) -> None:
    made = Made(lambda settings: Verdict("refused", "DataError: there is no file"))
    with pytest.raises(UsageError, match="there is no file"):
        climb(tmp_path, made)
    assert climb(tmp_path, Made(lambda settings: HEALTHY)).state == "not_reproduced"  # and it is tried again


def test_a_change_that_is_refused_is_skipped_with_the_reason(tmp_path: Path) -> None:
    """A trial has settings of its own, which a change may not go together with: that says nothing about the change."""

    def decide(settings: Settings) -> Verdict:
        if "train.schedule.warmup_steps" in settings:
            return Verdict("refused", "ConfigError: the warm-up is not shorter than the run")
        return Verdict("diverged", "the loss is not a number")

    outcome = climb(tmp_path, Made(decide), "instability")
    (step,) = [step for step in outcome.steps if step.name == "longer warm-up"]
    assert (step.result, step.what) == ("skipped", "ConfigError: the warm-up is not shorter than the run")
    assert outcome.state == "not_cured"


def test_the_smaller_micro_batch_is_computed(tmp_path: Path) -> None:
    made = Made(lambda settings: HEALTHY if settings.get("train.micro_batch", 99) <= 8 else Verdict("out_of_memory"))
    outcome = climb(tmp_path, made, "out_of_memory", ("train.global_batch=66",))
    assert outcome.cure is not None
    assert outcome.cure.settings == {"train.micro_batch": 8}  # 33 samples on each of 2 ranks, a quarter
    assert made.tried[1][1] == {"train.micro_batch": 16}


def test_low_throughput_takes_ten_percent_more(tmp_path: Path) -> None:
    def pace(settings: Settings) -> Verdict:
        rate = 1000.0 + 20 * ("parallel.bucket_mb" in settings) + 200 * ("train.compile.enabled" in settings)
        return Verdict("healthy", "", rate)

    outcome = climb(tmp_path, Made(pace), "low_throughput")
    assert outcome.cure is not None
    assert outcome.cure.words == "train.compile.enabled=true"
    assert outcome.price is not None
    assert outcome.price < 0
    assert "costs no throughput" in describe(outcome)[0]


def test_a_script_of_ones_own_has_other_knobs(tmp_path: Path) -> None:
    config, script = tmp_path / "script.yaml", tmp_path / "train.py"
    script.touch()
    config.write_text(
        f"recipe: command\ncommand:\n  argv: [python, {script}, '--workers={{params.workers}}']\n  params: {{workers: 2}}\n"
    )
    (tmp_path / "mine.yaml").write_text(
        "symptom: deadlock\nrungs:\n"
        "  - {name: buckets, set: {parallel.bucket_mb: 100}}\n"
        "  - {name: one worker, set: {command.params.workers: '= command.params.workers / 2'}}\n"
        "  - {name: no such, set: {command.parms.workers: 0}}\n"
    )
    subject = find_subject(str(config), [], {"launch.gpus": ([], "a test")})
    changes = [plan_change(rung, subject) for rung in load_ladder(str(tmp_path / "mine.yaml")).rungs]
    assert "no effect here" in changes[0].skip
    assert (changes[1].skip, changes[1].settings) == ("", {"command.params.workers": 1})
    assert "has no key" in changes[2].skip


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_directory_that_cannot_be_is_said(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("somebody's")
    flags = {"launch.nproc": (2, "a test"), "launch.gpus": ([], "a test")}
    session = Session("sasrec", [], flags, Options(out=tmp_path / "file" / below))
    with pytest.raises(UsageError, match="a file stands where a directory is needed"):
        session.run(lambda line: None)


def test_what_it_came_to_is_written(tmp_path: Path) -> None:
    made = Made(lambda settings: HEALTHY if "parallel.bucket_mb" in settings else STALLED)
    outcome = climb(tmp_path, made)
    flags = {"launch.nproc": (2, "a test"), "launch.gpus": ([], "a test")}
    session = Session("sasrec", ["train.max_steps=9"], flags, Options(out=tmp_path))
    command = session.cure_command(outcome)
    assert command is not None
    assert command[:3] == ["paceline", "train", "sasrec"]
    assert {"train.max_steps=9", "parallel.bucket_mb=100"} <= set(command)
    write_outcome(outcome, tmp_path, command)
    assert "| buckets of 100 MiB | parallel.bucket_mb=100 | free | cured |" in (tmp_path / "triage.md").read_text()
    assert to_record(outcome, command)["cure"]["settings"] == {"parallel.bucket_mb": 100}
