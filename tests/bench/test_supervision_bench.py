"""`bench supervision`: the clock that it measures with, and that a whole measurement comes to an end and leaves nobody behind."""

from __future__ import annotations

import os
import time

import pytest

from paceline.bench.supervision import Cost, _read_cpu_s, measure
from paceline.errors import PacelineError
from paceline.telemetry.pulse import find_pulse_directories


def test_the_clock_is_finer_than_a_tick() -> None:
    own = time.process_time()
    before = _read_cpu_s(os.getpid())
    while time.process_time() - own < 0.003:
        pass
    assert 0.003 <= _read_cpu_s(os.getpid()) - before < 0.05


def test_no_such_process_is_said() -> None:
    with pytest.raises(PacelineError, match="no clock of process"):
        _read_cpu_s(2**22 + 1)


def test_the_median_of_its_stretches_counts() -> None:
    summary = Cost(64, 0.1, 20.0, (0.03, 0.01, 0.008), 0.02, 0.2).summary()
    assert summary["share"] == 0.01
    assert summary["shares"] == [0.03, 0.01, 0.008]


@pytest.mark.timeout(120)
def test_it_measures_a_supervisor() -> None:
    directories = set(find_pulse_directories())
    cost = measure(ranks=2, seconds=1.0, repeats=2, step_s=0.05)
    assert len(cost.shares) == 2
    assert all(0 < share < 1 for share in cost.shares)
    assert cost.start_cpu_s > 0
    assert set(find_pulse_directories()) <= directories
