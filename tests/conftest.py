"""What tests of every room share: where the real data is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.errors import UsageError
from paceline.telemetry.pulse import remove_pulse_directory
from paceline.telemetry.run_file import load_run_file


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
