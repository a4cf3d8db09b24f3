"""The times of all ranks beside each other."""

from __future__ import annotations

from paceline.reports.rank_phases import _means


def test_means_weigh_windows_by_their_steps() -> None:
    rows = [{"window_steps": 10, "step_ms": 1.0, "wait_ms": None}, {"window_steps": 30, "step_ms": 5.0, "wait_ms": 2.0}]
    assert _means(rows) == {"step_ms": 4.0, "wait_ms": 2.0}
