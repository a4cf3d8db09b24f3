"""Telemetry is off where it is said to be off, and what it costs is told with its interval."""

from __future__ import annotations

import pytest

from paceline.bench.intervals import median_interval
from paceline.bench.telemetry import Cost, measure
from paceline.bench.telemetry_blocks import plan_blocks, run
from paceline.telemetry.reader import read_run


def test_a_drift_of_the_machine_favours_neither_side():
    blocks = plan_blocks(4)[2:]
    assert blocks == [True, False, False, True, True, False, False, True]
    spans = [1 + index / 100 for index in range(8)]  # it becomes slower and slower
    told = {"blocks": list(zip(blocks, spans, strict=True)), "block_steps": 10, "device": "CPU, 2 threads"}
    shares = Cost(told).shares
    assert sum(shares) == pytest.approx(0, abs=0.002)
    assert shares[0] < 0 < shares[1]


def test_the_interval_holds_the_median_and_is_the_same_every_time():
    values = [0.01 * (index % 7) for index in range(30)]
    interval = median_interval(values)
    assert interval.low <= interval.median <= interval.high
    assert interval.low < interval.high
    assert interval == median_interval(values)
    assert median_interval([2.0] * 5).low == 2.0


def test_blocks_without_telemetry_write_nothing(tmp_path):
    told = run(pairs=2, block_steps=10, parameters=10**6, tokens=4, root=str(tmp_path / "run"))
    assert told is not None
    assert [is_on for is_on, _ in told["blocks"]] == [True, False, False, True]
    logged = read_run(tmp_path / "run")
    # Ten steps a row: two blocks of warm-up, on, off, off, on, and the step that ends the last one. Then come the rows that were timed.
    steps = [int(line.split(",")[1]) for line in logged.layout.metrics.read_text().splitlines()[1:]]
    assert steps[:5] == [10, 20, 30, 60, 61]
    assert steps[5:] == [61] * 30
    summary = Cost(told).summary()
    assert summary["share_low"] <= summary["share"] <= summary["share_high"]
    assert all(value > 0 for value in summary["parts_us"].values())
    assert 0 < summary["direct_share"] < 1
    assert summary["target"] == 0.01
    beats = 4 * summary["parts_us"]["pulse"] + summary["parts_us"]["borders"]
    assert summary["direct_us"] > beats + summary["parts_us"]["row"] / 10


@pytest.mark.slow
def test_two_ranks():
    summary = measure(pairs=2, nproc=2, block_steps=10, tokens=4).summary()
    assert (summary["world_size"], summary["pairs"]) == (2, 2)
