"""A follower gives each whole line once, however the file grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.telemetry import follow
from paceline.telemetry.follow import Follower


def append(path: Path, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


def test_each_line_is_given_once_and_a_torn_one_waits(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    follower = Follower(path)
    assert follower.records() == []
    append(path, '{"a":1}\n{"a":')
    assert follower.records() == [{"a": 1}]
    assert follower.records() == []
    append(path, '2}\nrubbish\n7\n{"a":3}\n')
    assert follower.records() == [{"a": 2}, {"a": 3}]


def test_a_table_needs_its_header_once(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    follower = Follower(path)
    append(path, "step,lo")
    assert follower.rows() == []
    append(path, "ss\n1,0.5\n2")
    assert follower.rows() == [{"step": 1, "loss": 0.5}]
    append(path, ",0.25\n3,\n")
    assert follower.rows() == [{"step": 2, "loss": 0.25}, {"step": 3, "loss": None}]


def test_what_is_there_already_can_be_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_MOST_BYTES", 100)
    path = tmp_path / "events.jsonl"
    path.write_text('{"old": 1}\n' * 100)
    follower = Follower(path)
    follower.skip()
    append(path, '{"new": 1}\n')
    assert follower.records() == [{"new": 1}]
