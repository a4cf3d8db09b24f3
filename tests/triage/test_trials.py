"""What a trial is told, for a configuration and for a run with a checkpoint; and what goes on with a cure."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.config.contradictions import Facts
from paceline.errors import UsageError
from paceline.launch.signals import OperatorSignals
from paceline.recipes.job import load_job
from paceline.triage.changes import plan_change
from paceline.triage.climb import Outcome
from paceline.triage.ladder import Rung, load_ladder
from paceline.triage.session import Options, Session
from paceline.triage.subject import Subject, find_subject
from paceline.triage.trials import Trials
from paceline.triage.verdict import judge_trial

EXAMPLE = Path(__file__).parent.parent / "data" / "run-v1"
FLAGS = {"launch.gpus": ([], "a test")}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLE, tmp_path / "run")
    return tmp_path / "run"


def command(subject: Subject, settings: dict, symptom: str = "deadlock", steps: int = 30) -> list[str]:
    return Trials(subject, load_ladder(symptom), steps, Path("out"), OperatorSignals()).command(settings, Path("out/1"))


def test_a_configuration_begins_at_step_0() -> None:
    subject = find_subject("sasrec", ["train.epochs=3"], FLAGS | {"launch.nproc": (2, "a test")})
    words = command(subject, {"parallel.bucket_mb": 100})
    assert words[words.index("--resume") + 1] == "never"
    assert {"train.max_steps=30", "train.epochs=null", "supervise.policy=halt", "parallel.bucket_mb=100"} <= set(words)
    assert "launch.nproc=2" in words
    assert "train.schedule.horizon=300" in words  # a cosine over 30 steps would be another learning rate


def test_a_longer_warm_up_than_the_trial_can_be_tried() -> None:
    """Whatever the schedule: of a trial of 30 steps the warm-up of 500 is the beginning."""
    for kind in ("constant", "cosine"):
        subject = find_subject("sasrec", [f"train.schedule.kind={kind}", "train.epochs=2"], FLAGS)
        words = command(subject, {"train.schedule.warmup_steps": 5000}, "instability")
        overrides = [word for word in words if "=" in word]
        job = load_job("sasrec", overrides)
        job.check(Facts(2, 0))
        assert job.config.train.max_steps == 30
    words = command(find_subject("sasrec", ["train.schedule.kind=constant"], FLAGS), {})
    assert not any("horizon" in word for word in words), "where nothing bends, nothing is set"


def test_a_run_says_how_many_ranks_and_steps_and_how_fast(root: Path) -> None:
    subject = find_subject(str(root), [], FLAGS)
    assert subject.run is not None
    assert subject.placement.world_size == subject.run.run.attempts[-1].world_size == 2
    assert subject.failed_step == max(row["step"] for row in subject.run.metrics)
    assert subject.trial_steps(None, 5) == subject.failed_step - subject.start_step + 20
    assert subject.trial_steps(7, 5) == 7
    rates = [row["samples_per_s"] for row in subject.run.timed]
    assert min(rates) <= (subject.reference() or 0) <= max(rates)


def test_what_goes_on_with_a_cure(root: Path) -> None:
    session = Session(str(root), [], FLAGS, Options())
    assert session.out == Path(f"{root}-triage")

    def cured(**settings) -> list[str]:
        change = plan_change(
            Rung(name="a", set={key.replace("__", "."): v for key, v in settings.items()}), session.subject
        )
        assert not change.skip
        return session.cure_command(Outcome("cured", "deadlock", [], change)) or []

    same = cured(parallel__bucket_mb=100)
    assert same[-2:] == ["--out", str(root)]
    other = cured(data__max_length=5)
    assert other[-4:] == ["--out", f"{root}-cured", "--resume", "never"]
    assert session.cure_command(Outcome("not_cured", "deadlock")) is None


def test_another_length_cannot_go_on_from_a_checkpoint(root: Path) -> None:
    found = find_subject(str(root), [], FLAGS)
    subject = Subject(found.target, found.overrides, found.job, found.placement, found.run, Path("step_00000004"), 4)
    words = command(subject, {"train.optimizer.lr": 1e-4}, "instability")
    assert words[words.index("--resume") + 1] == "step_00000004"
    assert "train.max_steps=34" in words
    words = command(subject, {"data.max_length": 5}, "out_of_memory")
    assert words[words.index("--resume") + 1] == "never"
    assert "train.max_steps=30" in words


@pytest.mark.parametrize(("metrics", "is_bounded"), [("{}", False), ("{step: 'step (\\d+)'}", True)])
def test_a_script_whose_steps_nobody_sees_runs_until_its_time_is_over(
    tmp_path: Path, metrics: str, is_bounded: bool
) -> None:
    (tmp_path / "train.py").touch()
    config = tmp_path / "script.yaml"
    config.write_text(f"recipe: command\ncommand:\n  argv: [python, {tmp_path / 'train.py'}]\n  metrics: {metrics}\n")
    trials = Trials(find_subject(str(config), [], FLAGS), load_ladder("deadlock"), 30, tmp_path, OperatorSignals())
    trial = SimpleNamespace(root=tmp_path / "trial", log=tmp_path / "trial.log")
    seen = trials._see(trial.root, None, True, trial)
    assert seen.is_bounded == is_bounded
    assert judge_trial(seen).status == ("stalled" if is_bounded else "healthy")


def test_a_run_file_is_told_from_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(UsageError, match=r"this is a run's run\.json") as caught:
        find_subject(str(tmp_path / "run.json"), [], FLAGS)
    assert f"paceline triage {tmp_path}" in caught.value.render()
