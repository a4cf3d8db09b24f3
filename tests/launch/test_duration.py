from __future__ import annotations

from paceline.launch.duration import show_duration


def test_a_time_span() -> None:
    assert [show_duration(seconds) for seconds in (0, 59.6, 61, 3723)] == ["0:00", "1:00", "1:01", "1:02:03"]
