from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.cli.main import run_command
from paceline.files import Lock, write_json
from paceline.launch.claim import Claim, claim_run
from paceline.launch.description import RunDescription
from paceline.telemetry.pulse import remove_pulse_directory
from paceline.telemetry.run_file import load_run_file
from paceline.telemetry.stop_request import read_stop_request
from tests.launch.saved import save_checkpoint

OWNER = """
import sys, time
from pathlib import Path
from paceline.launch.claim import claim_run
from paceline.launch.description import RunDescription
from paceline.telemetry.stop_request import read_stop_request
DESCRIPTION = RunDescription("toy", "", [], "recipe: toy", {}, {"fingerprint": "a"})
claim = claim_run(Path(sys.argv[1]), DESCRIPTION, 1)
print("ready", flush=True)
while not (request := read_stop_request(claim.layout.stop_request, claim.attempt)):
    time.sleep(0.02)
state = sys.argv[2]
if state != "killed":
    claim.finish(state, request.reason if state == "stopped" else "rank 1 was lost", 17, 0 if state == "stopped" else 4)
if "again" in sys.argv or "restart" in sys.argv:
    if "again" in sys.argv:
        claim.release()
        claim = claim_run(Path(sys.argv[1]), DESCRIPTION, 1)
    else:
        claim = claim.begin_again(DESCRIPTION)
    print("again", flush=True)
    sys.stdin.readline()
    claim.finish("stopped", "ctrl_c", 1, 130)
"""


@contextlib.contextmanager
def owned(root: Path, *how: str) -> Iterator[subprocess.Popen[str]]:
    """A run whose owner ends in this way when it is asked to stop, and perhaps begins another attempt at once."""
    command = [sys.executable, "-c", OWNER, str(root), *how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        try:
            yield owner
        finally:
            owner.kill()


@pytest.mark.timeout(60)
def test_stop_asks_and_waits_for_the_owner(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with owned(tmp_path, "stopped") as owner:
        assert run_command(["stop", str(tmp_path)]) == 0
        assert owner.wait(timeout=10) == 0
    output = capfd.readouterr().out
    assert f"process {owner.pid}" in output
    assert "stopped at step 17 (stop_command)\n" in output
    assert run_command(["stop", str(tmp_path)]) == 2
    assert "not running (stopped: stop_command)" in capfd.readouterr().err


@pytest.mark.timeout(60)
def test_the_checkpoint_that_is_left_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with owned(tmp_path, "stopped"):
        save_checkpoint(tmp_path, 17)
        assert run_command(["stop", str(tmp_path)]) == 0
    assert "(stop_command); a checkpoint was left: checkpoints/step_00000017\n" in capfd.readouterr().out


@pytest.mark.timeout(60)
def test_a_run_that_was_brought_back_meanwhile(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with owned(tmp_path, "failed", "restart"):
        assert run_command(["stop", str(tmp_path)]) == 4
    assert f"ask again, another attempt has begun: paceline stop {tmp_path}" in capfd.readouterr().err


@pytest.mark.timeout(60)
def test_a_new_attempt_at_once_is_not_waited_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with owned(tmp_path, "stopped", "again") as owner:
        assert run_command(["stop", str(tmp_path)]) == 0
        assert owner.poll() is None
    assert "stopped at step 17 (stop_command)" in capfd.readouterr().out


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("how", "said"),
    [("failed", "it failed at step 17 (rank 1 was lost)"), ("killed", "it failed (its launcher was killed)")],
)
def test_a_run_that_fails_meanwhile_has_not_stopped_as_asked(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], how: str, said: str
) -> None:
    with owned(tmp_path, how):
        assert run_command(["stop", str(tmp_path)]) == 4
    assert said in capfd.readouterr().err


def test_a_directory_one_may_not_write(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = claim_run(tmp_path, RunDescription("toy", "", [], "recipe: toy", {}, {"fingerprint": "a"}), 1)
    assert isinstance(claim, Claim)

    def refuse(self: Lock, *, shared: bool = False) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.path))

    monkeypatch.setattr(Lock, "acquire", refuse)
    assert run_command(["stop", str(tmp_path)]) == 2
    error = capfd.readouterr().err
    assert "Permission denied" in error
    assert "the account that started the run" in error
    claim.release()
    remove_pulse_directory(claim.pulses)


def test_without_waiting(tmp_path: Path) -> None:
    claim = claim_run(tmp_path, RunDescription("toy", "", [], "recipe: toy", {}, {"fingerprint": "a"}), 1)
    assert isinstance(claim, Claim)
    try:
        assert run_command(["stop", str(tmp_path), "--no-wait"]) == 0
        request = read_stop_request(claim.layout.stop_request, 1)
        assert request is not None
        assert request.reason == "stop_command"
    finally:
        claim.finish("stopped", "ctrl_c", 0, 130)
        claim.release()


def test_a_run_whose_launcher_was_killed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    claim = claim_run(tmp_path, RunDescription("toy", "", [], "recipe: toy", {}, {"fingerprint": "a"}), 1)
    assert isinstance(claim, Claim)
    claim.release()
    remove_pulse_directory(claim.pulses)
    assert run_command(["stop", str(tmp_path)]) == 2
    assert "its launcher was killed" in capfd.readouterr().err
    run = load_run_file(tmp_path)
    assert run is not None
    assert not claim.layout.stop_request.exists()
    run.recipe = "sdk"  # a loop of somebody else's has no launcher
    run.save(claim.layout)
    assert run_command(["stop", str(tmp_path)]) == 2
    assert "the process ended without a word (killed, or os._exit)" in capfd.readouterr().err


def test_what_is_no_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(["stop", str(tmp_path / "nowhere")]) == 2
    write_json(tmp_path / "run.json", {"v": 99})
    assert run_command(["stop", str(tmp_path)]) == 2
    assert "newer" in capfd.readouterr().err
