"""Small sweeps, replayed: what is right there is no excuse, and a race finds its front."""

from __future__ import annotations

import json

import numpy as np
import pytest

from paceline.bench.racing_small import (
    CELLS,
    KINDS,
    NOISES,
    build_small,
    replay_all_small,
    replay_small,
    summarize_small,
)
from paceline.bench.racing_world import load_traces

TRACES = load_traces()


@pytest.mark.parametrize("kind", KINDS)
def test_cells_are_what_they_are_called(kind: str) -> None:
    for seed in range(20):
        cells = build_small(TRACES[0], kind, np.random.default_rng(seed))
        rates = sorted((cell.log_rate for cell in cells), reverse=True)
        assert len({cell.name for cell in cells}) == CELLS
        if kind == "null":
            assert len(set(rates)) == 1
        if kind == "front":
            assert rates[0] - rates[1] >= 0.0199
            assert rates[0] - rates[3] <= 0.2001
            assert rates[0] - rates[4] >= 0.2499


@pytest.mark.timeout(240)
def test_front_runners_of_a_small_race_have_trials_enough() -> None:
    """A floor for these seeds, not the target: 103 of 108 are right, 1.1 % behind; by the race's share alone 93, 2.8 % behind."""
    raced = [
        replay_small(trace.scaled(noise), kind, seed)
        for seed in range(96_000, 96_006)
        for noise in NOISES
        for trace in TRACES
        for kind in ("front", "spread")
    ]
    assert sum(r.race_right for r in raced) >= 0.92 * len(raced)
    assert sum(r.race_behind for r in raced) <= 0.018 * len(raced)
    assert sum(r.race_device_s for r in raced) <= 0.45 * sum(r.grid_device_s for r in raced)
    assert not any(r.is_claim_wrong for r in raced)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_small_races_do_not_get_worse() -> None:
    """A floor below what docs/racing.md measured."""
    rows = summarize_small(list(replay_all_small(10, seed=97_000)))
    assert json.loads(json.dumps(rows)) == rows
    for row in (row for row in rows if row["noise"] == "all"):
        assert row["right_share"] >= 0.9
        assert row["cost"] <= 0.5
        assert row["wrong_claim_share"] <= 0.05
