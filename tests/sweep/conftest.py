"""A sweep of a tiny foreign script: no torch, no data, trials of a second."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from paceline.cli.main import run_command

ROOT = Path(__file__).parents[2]
SCRIPT = """
import os, signal, subprocess, sys, time

speed, how = int(sys.argv[1]), sys.argv[2]
if how == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if how == "forks":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
if how == "silent":
    time.sleep(300)
for step in range(1, 100_000):
    time.sleep(0.001)
    if how == "fails" and step == 15:
        sys.exit("a disk on fire")
    if how == "memory" and step == 15:
        sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    loss = float("nan") if how == "diverges" and step > 12 else 10 / (10 + step * speed)
    print(f"iter {step} seen {step * speed} loss {loss}", flush=True)
    if how == "short" and step == 20:
        break
    if how == "diverges" and step == 30:
        break
"""
PLAN = r"""
recipe: command
command:
  argv: [PYTHON, fake.py, "{params.speed}", "{params.how}"]
  params: {speed: 1, how: well}
  metrics: {step: 'iter (\d+)', loss: 'loss ([\w.]+)', samples: 'seen (\d+)'}
  stop_grace_s: 0.5
axes: {params.speed: [1, 4]}
steps: 30
warmup_steps: 10
window: 10
repeats: 1
racing: false
stop_grace_s: 1.5
"""


@dataclass
class Place:
    """A directory with the script and a plan."""

    path: Path

    def sweep(self, *words: str) -> int:
        return run_command(["sweep", "plan.yaml", *words, "--out", "s"])

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """The same as a process of its own."""
        command = [sys.executable, "-m", "paceline", "sweep", "plan.yaml", *words, "--out", "s"]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        with open(self.path / "started.log", "ab") as output:
            return subprocess.Popen(
                command, cwd=self.path, env=environment, stdout=output, stderr=output, start_new_session=True
            )

    def write(self, change: Callable[[str], str]) -> None:
        plan = self.path / "plan.yaml"
        plan.write_text(change(plan.read_text()))

    @property
    def out(self) -> Path:
        return self.path / "s"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    (tmp_path / "fake.py").write_text(SCRIPT)
    (tmp_path / "plan.yaml").write_text(PLAN.replace("PYTHON", sys.executable))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return Place(tmp_path)
