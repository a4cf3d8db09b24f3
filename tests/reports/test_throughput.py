from __future__ import annotations

import math
import random
import statistics

import pytest

from paceline.reports.throughput import measure_throughput
from tests.reports.runs import window


def test_the_mean_is_all_samples_over_all_time() -> None:
    # 10 steps at 50/s take 0.2 s, 10 at 200/s take 0.05 s: 20 samples in 0.25 s.
    found = measure_throughput([window(10, 1.0), window(20, 50.0), window(30, 200.0)], window=50)
    assert found is not None
    assert found.rate.mean == pytest.approx(80.0)
    assert found.step_ms.mean == pytest.approx(12.5)
    assert (found.num_steps, found.num_windows, found.first_step, found.last_step) == (20, 2, 11, 30)
    assert found.excluded == ("the first window of attempt 1 (steps 1 to 10): start-up and warming caches",)
    # Weights 0.8 and 0.2 s: 0.8 * 30² + 0.2 * 120² = 3600, times 2 / (2 - 1).
    assert found.rate.std == pytest.approx(math.sqrt(7200))


def test_windows_of_other_lengths_weigh_by_their_steps() -> None:
    rows = [window(1, steps=1), window(31, 100.0, steps=30), window(33, 50.0, steps=2)]
    found = measure_throughput(rows, window=50)
    assert found is not None
    assert found.rate.mean == pytest.approx(32 / (0.3 + 0.04))
    assert found.step_ms.mean == pytest.approx((30 * 10 + 2 * 20) / 32)


def test_the_deviation_of_steps_is_that_of_the_single_steps() -> None:
    drawn = random.Random(2)
    single = [[drawn.gauss(20 + number, 3) for _ in range(count)] for number, count in enumerate((5, 10, 1, 20))]
    rows, step = [window(4, steps=4)], 4
    for times in single:
        step += len(times)
        std = statistics.stdev(times) if len(times) > 1 else 0.0
        mean = statistics.mean(times)
        rows.append(window(step, 1e3 / mean, len(times), step_ms=mean, step_ms_std=std))
    found = measure_throughput(rows, window=36)
    every = [time for times in single for time in times]
    assert found is not None
    assert found.num_steps == 36
    assert found.step_ms.mean == pytest.approx(statistics.mean(every))
    assert found.step_ms.std == pytest.approx(statistics.stdev(every))


def test_only_the_last_steps_count_in_whole_windows() -> None:
    rows = [window(step, rate=float(step)) for step in range(10, 201, 10)]
    found = measure_throughput(rows, window=25)
    assert found is not None
    assert (found.num_steps, found.first_step) == (30, 171)
    assert measure_throughput(rows, window=30).num_steps == 30  # type: ignore[union-attr]
    assert measure_throughput(rows, window=31).num_steps == 40  # type: ignore[union-attr]


def test_only_the_newest_attempt_counts() -> None:
    rows = [window(10), window(20, 5.0), *(window(step, 100.0, attempt=2) for step in (30, 40, 50))]
    found = measure_throughput(rows, window=100)
    assert found is not None
    assert (found.rate.mean, found.attempt, found.num_steps) == (pytest.approx(100.0), 2, 20)
    assert found.excluded[0] == "2 rows of earlier attempts"
    assert "first window of attempt 2 (steps 21 to 30)" in found.excluded[1]


def test_an_only_window_counts_and_is_named() -> None:
    found = measure_throughput([window(1, 50.0, steps=1)], window=50)
    assert found is not None
    assert (found.rate.mean, found.rate.std, found.step_ms.std) == (pytest.approx(50.0), None, None)
    assert found.excluded == ("nothing: this is the attempt's only window, and its start-up is in it",)


def test_rows_that_tell_no_pace_are_passed_over() -> None:
    silent = [window(30, samples_per_s=None), window(40, step_ms=math.nan), window(50, window_steps=None)]
    found = measure_throughput([window(10), window(20, 80.0), *silent], window=50)
    assert found is not None
    assert (found.rate.mean, found.num_windows) == (pytest.approx(80.0), 1)
    assert found.excluded[-1] == "3 rows without a rate or a time"
    assert measure_throughput(silent, window=50) is None
    assert measure_throughput([], window=50) is None


def test_the_recipes_own_unit() -> None:
    rows = [window(step, 100.0, units_per_s=2000.0) for step in (10, 20, 30)]
    found = measure_throughput(rows, window=50)
    assert found is not None
    assert found.units is not None
    assert found.units.mean == pytest.approx(2000.0)
