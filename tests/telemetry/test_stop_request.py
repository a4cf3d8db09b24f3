"""A stop request counts for its own attempt alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from paceline.telemetry.stop_request import EXIT_CODES, read_stop_request, write_stop_request


@pytest.mark.parametrize("reason", EXIT_CODES)
def test_a_request_is_read_back(tmp_path: Path, reason: str) -> None:
    path = tmp_path / "stop_request.json"
    written = write_stop_request(path, 2, reason, "paceline stop")
    assert read_stop_request(path, 2) == written
    assert written.by == f"paceline stop, pid {os.getpid()}"


def test_a_request_for_another_attempt_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "stop_request.json"
    write_stop_request(path, 1, "stop_command", "paceline stop")
    assert read_stop_request(path, 2) is None


def test_no_request(tmp_path: Path) -> None:
    assert read_stop_request(tmp_path / "stop_request.json", 1) is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "7",
        "null",
        '{"attempt": 1}',
        json.dumps({"attempt": 1, "reason": "a whim", "by": "x", "time": 0}),
        json.dumps({"attempt": 1, "reason": "sigterm", "by": "x", "time": 0, "more": 1}),
    ],
)
def test_a_damaged_one_does_not_count(tmp_path: Path, content: str) -> None:
    path = tmp_path / "stop_request.json"
    path.write_text(content)
    assert read_stop_request(path, 1) is None


def test_bytes_that_are_no_text_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "stop_request.json").write_bytes(b"\xff\xfe\x00")
    assert read_stop_request(tmp_path / "stop_request.json", 1) is None


def test_an_unknown_reason_is_our_mistake(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        write_stop_request(tmp_path / "stop_request.json", 1, "a whim", "x")
