"""The machine shared out among slots, and the processes of a trial found by their mark."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from paceline.sweep.trial import MARK, Slot, Trial, build_slots, end_marked
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.run_file import Attempt, RunFile
from paceline.telemetry.tables import METRICS_COLUMNS, Table


def test_one_slot_has_everything_and_several_share_gpus_or_cores() -> None:
    assert [(s.cores, s.visible) for s in build_slots(1, [0, 1], ["0", "1"])] == [(None, None)]
    assert [s.visible for s in build_slots(2, [0, 1], ["0", "1", "GPU-a", "GPU-b", "7"])] == ["0,1", "GPU-a,GPU-b"]
    assert [s.cores for s in build_slots(2, [0, 1, 4, 5], [])] == [{0, 1}, {4, 5}]


def test_its_age_does_not_hang_on_the_clock_and_one_bad_loss_is_not_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "t"
    trial = Trial([sys.executable, "-c", "import time; time.sleep(20)"], root, tmp_path / "log", "test-age", Slot(0))
    try:
        late = time.time() + 100_000
        monkeypatch.setattr(time, "time", lambda: late)
        assert trial.age_s < 1000
        root.mkdir()
        attempt = Attempt(1, 1, 1, 0.0, str(tmp_path / "pulses"), [], state="running")
        RunFile("id", "sasrec", "", "0", 0.0, {}, state="running", attempts=[attempt]).save(RunLayout(root))
        table = Table(RunLayout(root).metrics, METRICS_COLUMNS)
        for step, loss, broke_at in ((10, math.nan, None), (20, 2.0, None), (30, math.inf, None), (40, math.nan, 40)):
            table.write({"attempt": 1, "step": step, "loss": loss})
            trial.look()
            assert trial.broke_at == broke_at
        table.close()
    finally:
        trial.kill_all()


def test_what_carries_the_mark_is_ended_wherever_it_is_and_nothing_else() -> None:
    wait = "import time; time.sleep(20)"
    fork = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {wait!r}], start_new_session=True)"
    mark = f"test-{os.getpid()}-{time.monotonic_ns()}"
    orphan = subprocess.run([sys.executable, "-c", fork], env=os.environ | {MARK: mark}, check=True)
    deaf = [sys.executable, "-c", f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {wait}"]
    with (
        subprocess.Popen(deaf, env=os.environ | {MARK: mark}) as marked,
        subprocess.Popen([sys.executable, "-c", wait], env=os.environ | {MARK: f"{mark}-other"}) as other,
    ):
        assert end_marked({mark}) == []
        was_left = other.poll() is None
        other.kill()
        # Its exit code went to whoever waited first.
        assert not psutil.pid_exists(marked.pid)
        assert was_left
    assert orphan.returncode == 0
    assert not [p for p in psutil.process_iter() if _mark_of(p) == mark]


def _mark_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK) if process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.Error, OSError):
        return None
