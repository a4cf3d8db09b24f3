from __future__ import annotations

import subprocess
import sys

import pytest

from paceline.serving import process

CODE = """
import resource
import numpy as np
from paceline.serving.process import keep_memory

def count():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        np.ones(1 << 17)      # 1 MiB: given back to the system by default
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = count()
taken = keep_memory()
np.ones(1 << 17)
print(taken, first, count())
"""


@pytest.mark.timeout(60)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's setting")
def test_pages_are_kept() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=50, check=True)
    taken, before, after = done.stdout.split()
    if taken == "False":
        pytest.skip("the C library is not glibc")
    assert int(after) * 10 < int(before)


def test_without_glibc_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: None) -> None:
        raise OSError("no library")

    monkeypatch.setattr(process.ctypes, "CDLL", fail)
    assert process.keep_memory() is False


def test_waiting_threads_are_let_in_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "keep_memory", lambda: True)
    before = sys.getswitchinterval()
    try:
        process.prepare_process()
        assert sys.getswitchinterval() < 0.001
    finally:
        sys.setswitchinterval(before)
