"""What earlier runs left: real locks, real processes, real files."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from paceline.launch.claim import Claim, claim_run
from paceline.preflight.check import Check
from paceline.preflight.leftovers import check_leftovers
from paceline.preflight.subject import Subject, build_subject
from paceline.recipes.job import load_job
from paceline.telemetry.pulse import PulseWriter, create_pulse_directory, remove_pulse_directory
from tests.launch.test_orphans import beat
from tests.preflight.conftest import ROOT, by_name

HOLDER = """
import sys, time
from pathlib import Path
from paceline.files import Lock
lock = Lock(Path(sys.argv[1]))
assert lock.acquire(shared=sys.argv[2] == "shared")
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "run"


def subject_of(root: Path, *overrides: str) -> Subject:
    return build_subject(load_job("sasrec", [f"run.out={root}", *overrides], environ={}))[0]


def look(root: Path, *overrides: str) -> dict[str, Check]:
    return by_name(check_leftovers(subject_of(root, *overrides)))


def begin(root: Path) -> Claim:
    """A run that is there, and owned by this process."""
    subject = subject_of(root)
    assert subject.job is not None
    assert subject.identity is not None
    claim = claim_run(root, subject.job.describe_run(["test"], subject.identity), 2)
    assert isinstance(claim, Claim)
    return claim


def hold(path: Path, how: str) -> subprocess.Popen[str]:
    """A process that holds the lock, and looks like a worker."""
    command = [sys.executable, "-c", HOLDER, str(path), how, "paceline.worker"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_new_and_empty_ones_are_fine_and_stay_as_they_are(root: Path) -> None:
    assert look(root)["earlier run"].found.endswith("is new")
    assert not root.exists()
    root.mkdir()
    assert look(root)["earlier run"].status == "ok"
    assert os.listdir(root) == []


def test_a_strangers_files_another_run_and_a_torn_record(root: Path) -> None:
    root.mkdir()
    (root / "thesis.tex").touch()
    assert "it holds thesis.tex" in look(root)["earlier run"].found
    (root / "thesis.tex").unlink()
    claim = begin(root)
    claim.finish("stopped", "ctrl_c", 3, 130)
    claim.release()
    assert look(root)["earlier run"].found == "this one, stopped (ctrl_c): a start goes on with it"
    other = look(root, "run.seed=7")["earlier run"]
    assert (other.status, "run.seed: 0 → 7" in other.found) == ("fail", True)
    (root / "run.json").write_text('{"v": 1, "id": "e01')
    torn = look(root)["earlier run"]
    assert (torn.status, "run.json is damaged" in torn.found) == ("fail", True)
    assert torn.remedy


def test_a_living_owner_then_its_orphans_then_nothing(root: Path) -> None:
    claim = begin(root)
    claim.release()
    owner = hold(claim.layout.owner_lock, "alone")
    try:
        living = look(root)["earlier run"]
        assert (living.status, f"process {os.getpid()} owns it" in living.found) == ("fail", True)
        assert f"paceline stop {root}" in living.remedy
    finally:
        owner.kill()
        owner.communicate()
    assert look(root)["earlier run"].found == "this one, whose launcher was killed: a start goes on with it"
    worker = hold(claim.layout.workers_lock, "shared")
    try:
        beat(root, worker.pid)
        orphans = look(root)["orphans"]
        assert (orphans.status, orphans.values["pids"]) == ("warn", [worker.pid])
        assert psutil.pid_exists(worker.pid), "it only looks"
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.communicate()
    assert "orphans" not in look(root)


def test_pulses_of_the_dead(root: Path) -> None:
    """Old ones without a living rank; those of a living rank, and young ones that may still be starting, are left alone."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    dead, living, young = (create_pulse_directory(f"preflight{os.getpid()}", number) for number in (1, 2, 3))
    try:
        for directory in (dead, living):
            writer = PulseWriter(directory, 0, 1)
            writer.close()
            os.utime(directory, (time.time() - 3600,) * 2)
        record = dead / "rank_00000"
        data = bytearray(record.read_bytes())
        data[8:12] = gone.pid.to_bytes(4, "little")
        record.write_bytes(data)
        os.utime(dead, (time.time() - 3600,) * 2)
        found = look(root)["pulses"]
        assert found.status == "warn"
        named = set(found.values["directories"])
        assert str(dead) in named
        command, *arguments = shlex.split(found.remedy)
        assert (command, set(arguments[1:]) <= named) == ("rm", True), "it can be pasted"
        assert not {str(living), str(young)} & named
    finally:
        for directory in (dead, living, young):
            remove_pulse_directory(directory)
