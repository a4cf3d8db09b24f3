"""Events carry who, when, which attempt and which version; the other ranks stay quiet."""

from __future__ import annotations

import time
from pathlib import Path

from paceline.files import read_records
from paceline.telemetry.events import EventLog, QuietLog
from paceline.telemetry.layout import SCHEMA


def test_an_event_has_its_head_and_its_fields(tmp_path: Path) -> None:
    before = time.time()
    events = EventLog(tmp_path / "events.jsonl", "rank 0", attempt=2)
    events.write("plan", total_steps=400, slices=[16, 16])
    events.close()
    (event,) = read_records(tmp_path / "events.jsonl")
    assert before <= event.pop("time") <= time.time()
    assert event == {
        "v": SCHEMA,
        "attempt": 2,
        "source": "rank 0",
        "kind": "plan",
        "total_steps": 400,
        "slices": [16, 16],
    }


def test_a_choice_says_requested_effective_and_why(tmp_path: Path) -> None:
    events = EventLog(tmp_path / "events.jsonl", "rank 0", attempt=1)
    events.choice("precision.mode", "auto", "fp32", "no GPU")
    events.close()
    (event,) = read_records(tmp_path / "events.jsonl")
    assert event["kind"] == "choice"
    assert [event[name] for name in ("about", "requested", "effective", "reason")] == [
        "precision.mode",
        "auto",
        "fp32",
        "no GPU",
    ]


def test_several_sources_and_attempts_share_the_file(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    logs = [EventLog(path, source, attempt) for source, attempt in (("launcher", 1), ("rank 0", 1), ("rank 0", 2))]
    for log in logs:
        log.write("note", what=Path("a/b"))
        log.close()
    found = read_records(path)
    assert [(e["source"], e["attempt"]) for e in found] == [("launcher", 1), ("rank 0", 1), ("rank 0", 2)]
    assert found[0]["what"] == "a/b"


def test_a_quiet_log_writes_nothing_and_takes_the_same_calls() -> None:
    events = QuietLog()
    events.write("plan", total_steps=1)
    events.choice("strategy", "auto", "ddp", "2 ranks")
    events.close()
