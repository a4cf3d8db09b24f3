"""Every rank's own times, and its wait, which tells the slow one; a profile of all ranks beside it."""

from __future__ import annotations

import statistics

from paceline.telemetry.tables import TIMING_COLUMNS, read_table


def test_the_slow_rank_waits_least_and_every_rank_leaves_a_profile(run_ranks):
    run = run_ranks(
        2,
        "train.max_steps=24",
        "telemetry.log_every=4",
        "telemetry.timing_ranks=all",
        "telemetry.profile.start_step=6",
        "telemetry.profile.num_steps=2",
        "telemetry.profile.ranks=all",
        "telemetry.nvtx=true",
        "telemetry.sync_timing=true",
        plant="sleep:rank=1,seconds=0.03",
    )
    tables = [run.timing(rank) for rank in (0, 1)]
    steps = [4, 5, 7, 8, 12, 16, 20, 24]
    for rows in tables:
        assert tuple(rows[0]) == TIMING_COLUMNS
        assert [row["step"] for row in rows] == steps == [row["step"] for row in run.metrics]
        assert sum(row["window_steps"] for row in rows) == 24
        assert [row["step"] for row in rows if row["step_ms"] is None] == [7], "the profiled window"
        assert all(row["wait_steps"] for row in rows if row["step"] >= 8)
    fast, slow = (statistics.median(row["wait_ms"] for row in rows if row["step"] >= 8) for rows in tables)
    assert fast > slow
    assert fast > 10, "it sleeps 30 ms in every step"
    assert run.metrics[0]["backward_ms"] == tables[0][0]["backward_ms"], "metrics.csv has rank 0's"

    (event,) = run.events_of("profile")
    assert event["ranks"] == [0, 1]
    for rank in (0, 1):
        assert run.layout.profile_trace(1, rank).stat().st_size > 0
        assert read_table(run.layout.profile_table(1, rank))
    notes = {note["what"].split()[0] for note in run.events_of("note")}
    assert {"telemetry.nvtx", "telemetry.sync_timing"} <= notes
    choice = next(event for event in run.events_of("choice") if event["about"] == "telemetry.timing_ranks")
    assert "waits are read every 1 steps" in choice["reason"]
