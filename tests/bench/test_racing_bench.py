"""The replay tool: the machine it simulates is the one it says, and its table counts what happened."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace

import numpy as np
import pytest

from paceline.bench.racing import Replay, replay, replay_all, share_interval, summarize
from paceline.bench.racing_world import CELLS, KINDS, Cell, World, build_cells, load_traces
from paceline.sweep.evidence import Assignment, Verdict
from paceline.sweep.racer import Racer

TRACES = load_traces()


def test_three_recorded_sweeps_are_in_the_package() -> None:
    assert [trace.name for trace in TRACES] == ["buckets", "loading", "threads"]
    assert all(trace.drift_sd > 0 and trace.process_sd > 0 for trace in TRACES)
    assert any(trace.outlier_rate > 0 for trace in TRACES)


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.name)
def test_the_noise_is_what_was_asked_for(trace) -> None:
    quiet = replace(trace.scaled(0.02), outlier_rate=0.0, window_outlier_rate=0.0)
    assert quiet.trial_noise() == pytest.approx(0.02)
    rates = []
    for seed in range(150):
        world = World(quiet, [Cell("only", math.log(1000))], seed)
        rates.append(math.log(world.run(Assignment("only", 1, trace.steps)).samples_per_s or 0))
    # Drift moves within a trial, so a trial's mean scatters a little less than a moment of it.
    assert 0.012 < statistics.stdev(rates) < 0.024


@pytest.mark.parametrize("kind", KINDS)
def test_cells_are_what_they_are_called(kind: str) -> None:
    for seed in range(30):
        cells = build_cells(TRACES[0], kind, np.random.default_rng(seed))
        truth = sorted((cell.truth(160) for cell in cells if cell.is_sound), reverse=True)
        assert len(cells) == len({cell.name for cell in cells}) == CELLS
        assert cells[0].is_sound
        gap = truth[0] - truth[1]
        assert gap == 0 if kind == "null" else 0.0099 < gap < 0.0301
        if kind == "crossing":
            fastest = sorted(cells, key=lambda cell: -cell.log_rate)[:2]
            assert not any(cell.is_sound for cell in fastest)


def test_a_replay_is_the_same_every_time() -> None:
    trace = TRACES[1].scaled(0.01)
    first, second = (replay(trace, "gap", 3) for _ in range(2))
    assert first == second
    assert first.race_device_s < first.grid_device_s
    assert replay(trace, "gap", 4) != first


def test_shares_come_with_their_interval() -> None:
    low, high = share_interval(95, 100)
    assert (round(low, 3), round(high, 3)) == (0.887, 0.984)
    assert share_interval(0, 10)[0] == 0.0
    assert share_interval(10, 10)[1] == 1.0


def test_a_null_sweep_is_right_if_no_case_is_called_slower(monkeypatch) -> None:
    trace = TRACES[1].scaled(0.01)
    assert replay(trace, "null", 3).race_right
    claims = {
        f"a={i // 9} b={i // 3 % 3} c={i % 3}": Verdict("slower" if i == 5 else "undecided") for i in range(CELLS)
    }
    monkeypatch.setattr(Racer, "verdicts", lambda self: claims)
    claimed = replay(trace, "null", 3)
    assert (claimed.race_right, claimed.grid_right, claimed.is_claim_wrong) == (False, False, True)


def test_the_table_counts_what_happened() -> None:
    one = Replay("a", "gap", 0.02, 9, 100.0, 20.0, True, True, True, False, False, 50, 324)
    other = replace(one, race_device_s=40.0, race_right=False, is_claim_wrong=True)
    null = replace(one, kind="null")
    row, nulls, total, all_nulls = summarize([one, other, null])
    assert (row | {"trace": "all"}, nulls | {"trace": "all"}) == (total, all_nulls)
    assert (row["cost"], row["cost_median"], row["cost_p90"]) == (0.3, 0.3, 0.4)
    assert (row["right"], row["right_share"], row["wrong_claim_share"]) == (1, 0.5, 0.5)
    assert json.loads(json.dumps(row)) == row


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_race_does_not_get_worse() -> None:
    """A floor below what docs/racing.md measured, not the target: 15 replays of a kind cannot tell 90 % from 95 %."""
    rows = {row["kind"]: row for row in summarize(list(replay_all(5, seed=20_000))) if row["trace"] == "all"}
    assert set(rows) == set(KINDS)
    assert all(row["cost_median"] <= 0.35 for row in rows.values())
    for row in rows.values():
        assert row["right_share"] >= 0.85
        assert row["wrong_claim_share"] <= 0.07
