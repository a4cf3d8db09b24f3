"""`paceline train` and `paceline stop` as a person uses them: real launcher, agent and ranks, ended in every way there is."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from paceline.telemetry.reader import read_run
from tests.integration.conftest import WITHOUT_GPU, assert_gone, tiny, wait_for_step

ENDLESS = "train.max_steps=1000000"


def start(paceline, root: Path, *overrides: str, nproc: int = 2):
    command = paceline("train", "sasrec", *tiny(ENDLESS, *overrides), "--nproc", str(nproc), "--out", str(root))
    command.root = root
    return command


def started(paceline, root: Path, attempt: int, nproc: int = 2):
    """A run that has trained a few steps of this attempt, and its processes."""
    command = start(paceline, root, nproc=nproc)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and command.process.poll() is None:
        if root.joinpath("run.json").exists() and any(row["attempt"] == attempt for row in read_run(root).metrics):
            return command, command.descendants()
        time.sleep(0.1)
    raise AssertionError(command.finish())


def last_steps(root: Path, attempt: int, nproc: int) -> set[int]:
    run = read_run(root)
    beats = [[b for b in run.beats(rank) if b["attempt"] == attempt][-1] for rank in range(nproc)]
    return {beat["step"] for beat in beats}


@pytest.mark.timeout(300)
def test_a_run_is_stopped_in_every_way_and_found_again(paceline, tmp_path):
    """One run directory, four attempts: `paceline stop`, Ctrl-C, SIGTERM, a killed rank; test_kills.py kills agent and launcher."""
    root = tmp_path / "run"

    # A second start while the first runs is refused with its pid; `paceline stop` ends it with exit code 0.
    first, processes = started(paceline, root, attempt=1)
    code, _, err = start(paceline, root).finish()
    assert code == 2
    assert f"process {first.process.pid}" in err
    assert f"paceline stop {root}" in err
    assert "Traceback" not in err
    assert paceline("stop", str(root)).finish()[0] == 0
    code, out, err = first.finish()
    assert (code, err) == (0, ""), (out, err)
    assert_gone(processes)
    assert len(last_steps(root, 1, 2)) == 1
    assert read_run(root).run.attempts[0].reason == "stop_command"
    code, _, err = paceline("stop", str(root)).finish()
    assert code == 2
    assert "not running" in err

    # Another configuration does not mix into it.
    code, _, err = start(paceline, root, "train.optimizer.lr=0.5").finish()
    assert code == 2
    assert "train.optimizer.lr: 0.003 → 0.5" in err

    for attempt, number in ((2, signal.SIGINT), (3, signal.SIGTERM)):
        command, processes = started(paceline, root, attempt)
        command.process.send_signal(number)
        code, out, err = command.finish()
        assert code == 130, (out, err)
        assert_gone(processes)
        assert len(last_steps(root, attempt, 2)) == 1

    # A rank that dies is named with its signal; everything else ends.
    command, processes = started(paceline, root, attempt=4)
    victim = command.workers(2)[1]
    victim.kill()
    code, out, err = command.finish()
    assert code == 4, (out, err)
    assert "rank 1" in err
    assert f"{victim.pid}" in err
    assert "signal 9" in err
    assert "Traceback" not in err
    assert_gone(processes)

    run = read_run(root).run
    assert [a.exit_code for a in run.attempts] == [0, 130, 130, 4]
    assert [a.state for a in run.attempts] == ["stopped", "stopped", "stopped", "failed"]


@pytest.mark.timeout(120)
def test_a_second_ctrl_c(paceline, tmp_path):
    """One rank is stopped by the system: it can agree to nothing, and only killing helps."""
    command, processes = started(paceline, tmp_path / "run", attempt=1)
    command.workers(2)[1].suspend()
    command.process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert command.process.poll() is None
    command.process.send_signal(signal.SIGINT)
    code, out, err = command.finish(20)
    assert code == 130, (out, err)
    assert_gone(processes)


@pytest.mark.timeout(120)
def test_the_dry_run_prints_a_command_that_runs_and_the_run_is_recorded(paceline, tmp_path):
    root = tmp_path / "run"
    arguments = ["sasrec", *tiny("train.max_steps=20", "parallel.compression=bf16", "telemetry.tensorboard=true")]
    code, out, err = paceline("train", *arguments, "--nproc", "2", "--out", str(root), "--dry-run").finish()
    assert (code, err) == (0, "")
    assert not root.exists()
    (line,) = [text for text in out.splitlines() if "torch.distributed.run" in text]
    done = subprocess.run(
        ["bash", "-c", line],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=90,
        env=WITHOUT_GPU | {"OMP_NUM_THREADS": "7"},
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"step 20.*test", done.stdout), "rank 0 shows the progress under a foreign launcher"
    run = read_run(root)
    assert run.run.state == "finished"
    assert [len(run.beats(rank)) > 0 for rank in (0, 1)] == [True, True]
    assert list((root / "tensorboard").iterdir())
    # The same command by the launcher: nothing left to do, and it says so with the results.
    code, out, _ = paceline("train", *arguments, "--nproc", "2", "--out", str(root)).finish()
    assert code == 0
    assert "ndcg_10" in out
    assert read_run(root).run.attempts[-1].attempt == 1
    # Guarantee 2: what was asked for and what ran, with the reason.
    choices = {event["about"]: event for event in run.events_of("choice")}
    assert {
        "device",
        "precision.mode",
        "attention.impl",
        "strategy",
        "parallel.backend",
        "parallel.bucket_mb",
        "parallel.compression",
    } <= set(choices)
    assert all(event["reason"] for event in choices.values())
    precision = choices["precision.mode"]
    assert (precision["requested"], precision["effective"]) == ("auto", "fp32")
    environment = json.loads((root / "env.json").read_text())
    assert environment["versions"]["torch"]


def test_wait_for_step_fails_when_it_must(tmp_path):
    with pytest.raises(AssertionError, match="not reached"):
        wait_for_step(tmp_path, 1, timeout_s=0.1)
