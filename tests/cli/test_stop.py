from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paceline.cli.main import run_command
from paceline.files import write_json
from paceline.launch.claim import Claim, RunDescription, claim_run
from paceline.telemetry.pulse import remove_pulse_directory
from paceline.telemetry.run_file import load_run_file
from paceline.telemetry.stop_request import read_stop_request

OWNER = """
import sys, time
from pathlib import Path
from paceline.launch.claim import RunDescription, claim_run
from paceline.telemetry.stop_request import read_stop_request
claim = claim_run(Path(sys.argv[1]), RunDescription("toy", "", [], "recipe: toy", {}, {"fingerprint": "a"}), 1)
print("ready", flush=True)
while not (request := read_stop_request(claim.layout.stop_request, claim.attempt)):
    time.sleep(0.02)
claim.finish("stopped", request.reason, 17, 0)
"""


@pytest.mark.timeout(60)
def test_stop_asks_and_waits_for_the_owner(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    assert run_command(["stop", str(tmp_path)]) == 0
    assert owner.wait(timeout=10) == 0
    owner.stdout.close()
    output = capfd.readouterr().out
    assert f"process {owner.pid}" in output
    assert "stopped at step 17 (stop_command)" in output
    assert run_command(["stop", str(tmp_path)]) == 2
    assert "not running (stopped: stop_command)" in capfd.readouterr().err


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


def test_what_is_no_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(["stop", str(tmp_path / "nowhere")]) == 2
    write_json(tmp_path / "run.json", {"v": 99})
    assert run_command(["stop", str(tmp_path)]) == 2
    assert "newer" in capfd.readouterr().err
