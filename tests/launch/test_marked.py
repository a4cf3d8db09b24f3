"""Processes are found by their mark, wherever they have gone."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from paceline.launch.marked import _OUT_OF_REACH, describe_left, end_marked

_MARK = "TEST_OF_PACELINE"


@pytest.mark.timeout(60)
def test_what_carries_the_mark_is_ended_wherever_it_is_and_nothing_else() -> None:
    wait = "import time; time.sleep(20)"
    fork = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {wait!r}], start_new_session=True)"
    mark = f"test-{os.getpid()}-{time.monotonic_ns()}"
    orphan = subprocess.run([sys.executable, "-c", fork], env=os.environ | {_MARK: mark}, check=True)
    deaf = [sys.executable, "-c", f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {wait}"]
    with (
        subprocess.Popen(deaf, env=os.environ | {_MARK: mark}) as marked,
        subprocess.Popen([sys.executable, "-c", wait], env=os.environ | {_MARK: f"{mark}-other"}) as other,
    ):
        assert end_marked(_MARK, {mark}) == []
        was_left = other.poll() is None
        other.kill()
        # Its exit code went to whoever waited first.
        assert not psutil.pid_exists(marked.pid)
        assert was_left
    assert orphan.returncode == 0
    assert not [p for p in psutil.process_iter() if _mark_of(p) == mark]


def test_what_does_not_go_is_told_with_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = describe_left([os.getpid(), 2**22 + 1])
    assert sentence == f"could not end process {os.getpid()} (running: {_OUT_OF_REACH}), {2**22 + 1} (gone since)"
    monkeypatch.setattr(psutil.Process, "status", lambda self: psutil.STATUS_DISK_SLEEP)
    assert "(disk-sleep: it is in the kernel, where no signal reaches it" in describe_left([os.getpid()])


def _mark_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(_MARK) if process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.Error, OSError):
        return None
