from __future__ import annotations

import subprocess
import sys

import pytest

from paceline.serving import memory

CODE = """
import resource
import numpy as np
from paceline.serving.memory import keep_memory

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

    monkeypatch.setattr(memory.ctypes, "CDLL", fail)
    assert memory.keep_memory() is False
