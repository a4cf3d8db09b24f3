"""What tests of every room share: where the real data is, and over how many processes they are spread."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.cores import cpu_count
from paceline.errors import UsageError
from paceline.telemetry.pulse import remove_pulse_directory
from paceline.telemetry.run_file import load_run_file

_MOST_PROCESSES = 8
"""Each of them imports torch and starts ranks of its own; more would be short of memory before they are short of cores."""


def pytest_configure() -> None:
    # What a command prints must not follow from the terminal here, whose size readline exports.
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    # Matrices are small here: with a second thread the replays of a race took 11 s of CPU time instead of 1 on two busy cores
    # (2026-11-16), because threads that wait for each other spin. Read when numpy is first imported, which is later.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Ignored in a shell's background job, or under nohup; what tests start and interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` means: one for every core that we may use, also in a container that was given less than the machine has."""
    return min(cpu_count(), _MOST_PROCESSES)


def pytest_collection_finish() -> None:
    """A process that shares the cores with others of its kind takes one: threads of torch that wait for a core spin meanwhile."""
    if "PYTEST_XDIST_WORKER" in os.environ and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_pulses_left(tmp_path: Path) -> Iterator[None]:
    """A run whose launcher a test killed keeps its pulses until its next attempt; here there is none."""
    yield
    for path in tmp_path.glob("**/run.json"):
        with contextlib.suppress(UsageError):
            run = load_run_file(path.parent)
            for attempt in run.attempts if run else ():
                remove_pulse_directory(Path(attempt.pulses))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The directory with real data sets, which are not part of the project."""
    path = os.environ.get("PACELINE_TEST_DATA")
    if not path or not Path(path).is_dir():
        pytest.skip("PACELINE_TEST_DATA names no directory with real data")
    return Path(path)


@pytest.fixture
def mount_disk() -> Iterator[Callable[[Path, str], None]]:
    """mount_disk(directory, "size=32k") makes the directory a disk of its own, where the system lets us mount one."""
    disks: list[Path] = []

    def mount(directory: Path, options: str) -> None:
        directory.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)]
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
        if mounted.returncode:
            pytest.skip(f"cannot mount a disk here: {mounted.stderr.strip()}")
        disks.append(directory)

    yield mount
    # `-l`: also while a test that failed holds a file there. A disk that stays keeps its directory from ever being removed.
    for disk in disks:
        subprocess.run(["umount", "-l", str(disk)], check=True)
