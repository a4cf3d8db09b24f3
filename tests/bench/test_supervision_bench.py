"""`bench supervision`: the clock that it measures with, and that a whole measurement comes to an end and leaves nobody behind."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from paceline.bench import supervision
from paceline.bench.supervision import Cost, _read_cpu_s, measure
from paceline.errors import PacelineError
from paceline.telemetry.pulse import create_pulse_directory as directory


def test_the_clock_is_finer_than_a_tick() -> None:
    before = _read_cpu_s(os.getpid())
    own = time.process_time()
    while time.process_time() - own < 0.003:
        pass
    after = _read_cpu_s(os.getpid())
    assert 0.003 <= after - before <= time.process_time() - own + 0.05
    assert round(after * 100, 3) != round(after * 100) or round(before * 100, 3) != round(before * 100)


def test_no_such_process_is_said() -> None:
    with pytest.raises(PacelineError, match="no clock of process"):
        _read_cpu_s(2**22 + 1)


def test_the_median_of_its_stretches_counts() -> None:
    summary = Cost(64, 0.1, 20.0, (0.03, 0.01, 0.008), 0.02, 0.2).summary()
    assert summary["share"] == 0.01
    assert summary["shares"] == [0.03, 0.01, 0.008]


@pytest.mark.timeout(120)
def test_it_measures_a_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    monkeypatch.setattr(
        supervision, "create_pulse_directory", lambda *names: made.append(directory(*names)) or made[-1]
    )
    cost = measure(ranks=2, seconds=1.0, repeats=2, step_s=0.05)
    assert len(cost.shares) == 2
    assert all(0 < share < 1 for share in cost.shares)
    assert cost.start_cpu_s > 0
    assert [path.exists() for path in made] == [False]
