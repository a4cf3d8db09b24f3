"""`paceline train` with --hostfile and --slurm, as a person types it; what is started is in tests/launch/hosts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from paceline.cli.main import run_command
from paceline.cli.starting_elsewhere import choose_port, option_value, without


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts").write_text("node-a slots=2\nnode-b\n")


def train(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["paceline", "train", *words])
    return run_command(["train", *words])


def test_words_that_are_not_passed_on() -> None:
    own = {"--slurm": 1, "--dry-run": 0}
    words = ["train", "a", "--slurm", "x=1", "--dry-run", "--slurm=y=2", "b=c", "--out", "d"]
    assert without(words, own) == ["train", "a", "b=c", "--out", "d"]
    assert option_value(words, "--out") == "d"
    assert option_value(["--out=a", "--out=b"], "--out") == "b"
    assert option_value(words, "--gpus") is None


def test_a_dry_run_over_ssh(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert train(monkeypatch, "sasrec", "--hostfile", "hosts", "train.epochs=2", "--dry-run") == 0
    first, second = capsys.readouterr().out.splitlines()
    port = choose_port(tmp_path, ["train", "sasrec", "train.epochs=2"])
    told = f"remote train sasrec train.epochs=2 --nnodes 2 --rdzv node-a:{port} --nproc 2"
    assert (f"cd {tmp_path} && exec" in first, told in first) == (True, True)
    assert (" node-b " in second, f"node-a:{port}" in second) == (True, True)


def test_another_training_meets_at_another_port() -> None:
    ports = [choose_port(Path("/runs") / where, ["train", what]) for where in "ab" for what in ("nsa", "sasrec")]
    assert len(set(ports)) == 4
    assert all(20000 <= port < 30000 for port in ports)
    assert choose_port(Path("/runs/a"), ["train", "nsa"]) == ports[0], "the same command goes on at the same one"


def test_a_dry_run_of_a_batch_job(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:  # fmt: skip
    words = ["sasrec", "--slurm", "nodes=2 time=30", "--slurm", "partition=gpu", "--out", "mine", "--dry-run"]
    assert train(monkeypatch, *words) == 0
    script = capsys.readouterr().out
    assert "#SBATCH --partition=gpu" in script
    assert f"paceline train sasrec --out mine --out {tmp_path}/mine --nnodes" in script
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hosts"]


def test_a_batch_job_is_written_and_submitted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbatch").write_text('#!/bin/sh\necho "$@" > asked.txt; echo 12\n')
    (tmp_path / "bin" / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert train(monkeypatch, "sasrec", "--slurm", "time=30", "--out", "runs/mine") == 0
    assert "submitted as job 12" in capsys.readouterr().out
    assert (tmp_path / "asked.txt").read_text() == f"--parsable {tmp_path}/runs/mine.sbatch\n"
    assert (tmp_path / "runs" / "mine.sbatch").read_text().startswith("#!/bin/bash\n")
    assert not (tmp_path / "runs" / "mine").exists()
    monkeypatch.setenv("PATH", "")
    assert train(monkeypatch, "sasrec", "--slurm", "time=30", "--out", "runs/mine") == 2
    assert "there is no sbatch here: nothing was submitted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--hostfile", "hosts", "--slurm", "time=30"], "two ways to do the same"),
        (["--hostfile", "nothing"], "cannot read the hostfile"),
        (["--slurm", "tiem=30"], "did you mean time?"),
        (["train.epoch=2", "--hostfile", "hosts"], "train.epochs"),
    ],
)
def test_what_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], what: str
) -> None:
    assert train(monkeypatch, "sasrec", *words) == 2
    assert what in capsys.readouterr().err


def test_help_says_that_they_are_experimental(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["train", "--help"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "--hostfile FILE Experimental:" in words
    assert "--slurm KEY=VALUE Experimental:" in words


@pytest.mark.parametrize("elsewhere", [["--hostfile", "hosts"], ["--slurm", "nodes=2"]])
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--nproc", "two"], "launch.nproc=two"),
        (["--gpus", "a,b"], "--gpus a,b is not a list"),
        (["--max-restarts=often"], "supervise.max_restarts=often"),
    ],
)
def test_a_wrong_flag_does_not_travel(
    elsewhere: list[str],
    words: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert train(monkeypatch, "sasrec", *elsewhere, *words, "--dry-run") == 2
    assert says in capsys.readouterr().err
