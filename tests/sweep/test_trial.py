"""The machine shared out among slots, and a trial watched from outside."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import pytest

from paceline.sweep.trial import Slot, Trial, build_slots
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
