"""A CUDA allocation that really fails: sizes, batch and way out in the message, the allocator's picture as JSON beside the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.telemetry.reader import read_run
from tests.integration.conftest import tiny

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
HERE = Path(__file__).parent.parent / "integration"
WORKER = "import planted, sys; planted.plant('hungry:step=3', 0); from paceline.worker.__main__ import main; sys.exit(main(sys.argv[1:]))"


def test_the_allocators_picture_is_kept(tmp_path):
    root = tmp_path / "run"
    path = os.pathsep.join([str(HERE.parents[1]), str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path}
    arguments = ["sasrec", *tiny("train.max_steps=9", "train.graph=false"), "--out", str(root)]
    done = subprocess.run(
        [sys.executable, "-c", WORKER, *arguments], capture_output=True, text=True, timeout=240, env=environment
    )
    assert done.returncode == 4, done.stdout + done.stderr
    run = read_run(root)
    (failure,) = run.events_of("failure")
    assert failure["error"] == "OutOfMemoryError"
    (problem,) = failure["problems"]
    assert "the GPU (" in problem["what"]
    assert "4,194,304.00 GiB asked for" in problem["what"]
    assert "batch: " in problem["where"]
    assert "train.micro_batch=18 " in problem["do"]
    kept = json.loads(run.layout.memory(0).read_text())
    assert kept["segments"]
    assert sum(segment["bytes"] for segment in kept["segments"]) == kept["reserved_bytes"]
    assert kept["allocated_bytes"] <= kept["reserved_bytes"] < kept["total_bytes"]
    assert {state for segment in kept["segments"] for _, state in segment["blocks"]} >= {"active_allocated"}
