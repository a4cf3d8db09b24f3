"""On one NVIDIA GPU: a small validation of nsa with its own kernels; the profile shows them, and memory stands still."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paceline.files import read_json

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
SIZES = ("baseline=30", "steps=20", "long=120", "rows=2", "profiled=12", "profile_from=8", "observed=40", "parity=1024")


def test_validation_of_nsa_on_a_gpu(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [*(f"sizes.{each}" for each in SIZES), "config=nsa", "model.head_width=64", "launch.gpus=[0]"]
    loose = ["limits.pace_loss=0.5"]  # short runs on a machine that may be shared
    command = [sys.executable, "-m", "paceline", "play", "validate", *words, *loose, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    record = read_json(out / "playbook.json")
    phases = {phase["name"]: phase for phase in record["phases"]}
    assert [name for name, phase in phases.items() if phase["state"] == "skipped"] == ["buckets", "isolation", "loader"]
    assert phases["parity"]["results"]["has_fast"] is True
    assert phases["audit"]["results"]["fallbacks"] == 0
    assert "nsa_" in phases["audit"]["results"]["backend"]
    # A profile without a graph shows the kernels of every branch, forward and backward.
    shares = phases["attribution"]["results"]
    assert all(shares[f"share.nsa_{branch}"] > 0 for branch in ("compressed", "selected", "window"))
    assert any(name.endswith("_backward") and value > 0 for name, value in shares.items())
    assert phases["endure"]["results"]["memory_growth_high"] <= 0.03
    assert record["verdict"] == "passed what was judged; 1 not judged; 3 skipped"
