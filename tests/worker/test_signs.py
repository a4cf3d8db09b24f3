"""A rank's first signs, and a signal that others want, too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.telemetry.layout import RunLayout
from paceline.telemetry.stack_file import catches, find_answerer

RANK = """
import ctypes, signal, sys, time
from pathlib import Path
from paceline.telemetry.layout import RunLayout
from paceline.worker.signs import open_signs
pulse = open_signs(RunLayout(Path(sys.argv[1])), sys.argv[2], 0, 1)
print("ready", flush=True)
sys.stdin.readline()
exec(sys.argv[3])
time.sleep(60)
"""
IN_PYTHON = "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(1))"
IN_C = "libc = ctypes.CDLL(None); libc.signal(signal.SIGUSR1, ctypes.cast(libc.exit, ctypes.c_void_p))"


@pytest.fixture
def rank(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    words = [str(tmp_path), f"test{os.getpid()}{time.monotonic_ns() % 10**9}", request.param]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", RANK, *words], **pipes) as process:
        yield process
        process.kill()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("rank", [IN_PYTHON, IN_C], indirect=True)
def test_the_offer_is_taken_back_when_a_library_wants_the_signal_for_itself(tmp_path: Path, rank) -> None:
    path = RunLayout(tmp_path).stacks(0)
    assert rank.stdout.readline() == "ready\n"
    assert find_answerer(path) == rank.pid
    rank.stdin.write("\n")
    rank.stdin.flush()
    deadline = time.monotonic() + 30
    while find_answerer(path) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    # From outside it looks as before: whoever went by that alone would have ended it.
    assert catches(Path(f"/proc/{rank.pid}/status").read_text())
    assert rank.poll() is None
    rank.send_signal(signal.SIGUSR1)
    assert rank.wait(30) != 0
