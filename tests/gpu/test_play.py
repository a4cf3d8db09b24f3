"""On one NVIDIA GPU: a playbook from the smoke test to compiled inference, and which speed-up is asked for there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from paceline.files import read_json
from paceline.playbook.acceptance import choose_speed_up

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


def test_p0_to_p3_on_a_gpu(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("launch.nproc=1", "P0.train.max_steps=40", "P1.steps=40", "P2.train.epochs=2", "P3.enabled=true")
    command = [sys.executable, "-m", "paceline", "play", "p0-p3", *words, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    phases = {phase["name"]: phase for phase in read_json(out / "playbook.json")["phases"]}
    assert [phase["state"] for phase in phases.values()] == ["done"] * 4
    assert phases["P3"]["results"]["equal"] is True
    assert "on cuda in bf16" in phases["P3"]["evidence"][3]["from"]


def test_the_speed_up_asked_for_follows_the_capability() -> None:
    major, minor = min(torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count()))
    share, why = choose_speed_up("auto")
    assert share == (0.20 if major < 8 else 0.08)
    assert f"has {major + minor / 10:g}" in why
