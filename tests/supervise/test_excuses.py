from __future__ import annotations

from pathlib import Path

import pytest

from paceline.diagnose.finding import Finding
from paceline.supervise.excuses import Excuses
from paceline.telemetry import follow
from paceline.telemetry.events import EventLog
from paceline.telemetry.layout import RunLayout


def test_what_a_rank_said_at_the_end_of_a_long_file_is_heard_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_MOST_BYTES", 1000)
    layout = RunLayout(tmp_path)
    events = EventLog(layout.events, "rank 0", 1)
    for step in range(100):
        events.write("note", what="long ago", step=step)
    dead = Finding("dead_rank", "rank 1 has gone", "look", severity="critical", cause="gone", rank=1)
    assert not Excuses(layout, 1, is_ours=True).cover(dead)
    events.write("failure", error="DataError", rank=1, secondary=False)
    events.close()
    assert Excuses(layout, 1, is_ours=True).cover(dead)
    assert not Excuses(layout, 2, is_ours=True).cover(dead), "it was said of another attempt"
