"""On one NVIDIA GPU, shared by two ranks: a kernel that never ends on one of them is noticed, its rank named, and the run halted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.files import read_json
from paceline.telemetry.reader import read_run
from tests.integration.conftest import tiny

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

ENDLESS = """
import os, sys
if os.environ.get("RANK") == "1" and "paceline.worker" in sys.orig_argv and "torch.distributed.run" not in sys.orig_argv:
    import threading

    def plant():
        import time
        while "paceline.engine.step" not in sys.modules:
            time.sleep(0.05)
        time.sleep(0.5)
        from paceline.engine.step import TrainStep
        run = TrainStep.run
        def wrapped(self, number, batches):
            if number == 60:
                import torch
                for _ in range(12):      # as good as endless; should nobody end it, the GPU is free again after two minutes
                    torch.cuda._sleep(2 * 10**10)      # ten seconds each
            return run(self, number, batches)
        TrainStep.run = wrapped

    threading.Thread(target=plant, daemon=True).start()
"""


def test_a_rank_whose_gpu_never_ends_is_named(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(ENDLESS)
    root = tmp_path / "run"
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    options = tiny("train.max_steps=100000", "supervise.policy=halt", "train.graph=false")
    command = [sys.executable, "-m", "paceline", "train", "sasrec", *options, "--nproc", "2", "--out", str(root)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env=os.environ | {"PYTHONPATH": path}, check=False
    )
    assert done.returncode == 5, done.stdout + done.stderr
    (report,) = [read_json(path) for path in root.glob("incidents/*/report.json")]
    assert (report["finding"]["kind"], report["finding"]["rank"]) == ("stall", 1), report["finding"]
    assert report["action"] == "killed"
    assert report["stacks"]["missing"] == {}
    assert read_run(root).run.attempts[-1].exit_code == 5
