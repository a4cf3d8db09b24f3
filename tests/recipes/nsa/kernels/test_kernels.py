"""The GPU kernels on a CPU, in a process in which Triton interprets them; those for Hopper are simulated."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

TESTS = [
    "interpreted_choice.py",
    "interpreted_kernels.py",
    "interpreted_operators.py",
    "interpreted_work.py",
    "simulated_kernels.py",
]


@pytest.mark.parametrize("tests", TESTS)
@pytest.mark.timeout(300)
@pytest.mark.skipif(find_spec("triton") is None, reason="the kernels are in Triton, which is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs them for real")
def test_kernels_by_the_interpreter(tests: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    # Of its own: at its end pytest tidies up what lies beside it, and so do others meanwhile.
    command += [f"--basetemp={tmp_path / 'inner'}", str(Path(__file__).with_name(tests))]
    ran = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=280, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout
