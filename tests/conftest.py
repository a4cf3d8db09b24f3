"""What tests of every room share: where the real data is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The directory with real data sets, which are not part of the project."""
    path = os.environ.get("PACELINE_TEST_DATA")
    if not path or not Path(path).is_dir():
        pytest.skip("PACELINE_TEST_DATA names no directory with real data")
    return Path(path)
