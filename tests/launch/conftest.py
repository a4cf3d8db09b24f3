"""What the tests of the launch room share: pulses that leave nothing in shared memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.telemetry import pulse


@pytest.fixture(autouse=True)
def _own_shared_memory(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path_factory.mktemp("shared_memory")
    monkeypatch.setattr(pulse, "_SHARED_MEMORY", place)
    return place
