from __future__ import annotations

from pathlib import Path

import pytest

from paceline.launch import record
from paceline.launch.hardware import Gpu


def test_gpus_are_those_of_the_drivers_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "list_gpus", lambda: [Gpu(0, "GPU-1", "NVIDIA H200", 139.8)])
    monkeypatch.setattr(record, "driver_version", lambda: "580.1")
    found = record.describe_environment({}, tmp_path)
    assert found["gpus"] == [{"index": 0, "uuid": "GPU-1", "name": "NVIDIA H200", "memory_gib": 139.8}]
    assert found["driver"] == "580.1"
