"""How long a thread ran, or was ready to: what it does counts, what it waits for does not."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from paceline.telemetry import thread_time
from paceline.telemetry.thread_time import open_thread_time


def test_work_counts_and_waiting_does_not() -> None:
    clock = open_thread_time()
    if clock is None:
        pytest.skip("this kernel does not tell how long a thread was ready to run")
    ran, queued = clock.read_s()
    began = time.perf_counter()
    time.sleep(0.05)
    slept_s = time.perf_counter() - began
    ran_asleep, queued_asleep = clock.read_s()
    assert ran_asleep - ran < 0.02
    assert ran_asleep - ran + queued_asleep - queued < slept_s - 0.03
    while clock.read_s()[0] - ran_asleep < 0.02:
        pass
    busy_s = time.perf_counter() - began - slept_s
    ran_busy, queued_busy = clock.read_s()
    # All of that time it ran, or wanted to; other threads' work is none of it.
    assert ran_busy - ran_asleep + queued_busy - queued_asleep == pytest.approx(busy_s, rel=0.3, abs=0.005)
    clock.close()


def test_another_threads_work_is_not_counted() -> None:
    clock = open_thread_time()
    if clock is None:
        pytest.skip("this kernel does not tell how long a thread was ready to run")
    before = clock.read_s()[0]
    helper = threading.Thread(target=lambda: sum(range(2_000_000)))
    helper.start()
    helper.join()
    assert clock.read_s()[0] - before < 0.01
    clock.close()


@pytest.mark.parametrize("text", ["", "0", "a b c"])
def test_a_kernel_that_tells_nothing_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def open_other(path: str, flags: int) -> int:
        (tmp_path / "schedstat").write_text(text)
        return opened(tmp_path / "schedstat", flags)

    opened = os.open
    monkeypatch.setattr(thread_time.os, "open", open_other)
    assert open_thread_time() is None
    monkeypatch.setattr(thread_time.os, "open", lambda path, flags: opened(tmp_path / "none", flags))
    assert open_thread_time() is None
