from __future__ import annotations

from pathlib import Path

import pytest

from paceline.telemetry.incident_line import format_incident, parse_incident
from paceline.telemetry.policy_request import read_policy_request, write_policy_request


def test_a_wish_counts_for_its_attempt_alone(tmp_path: Path) -> None:
    path = tmp_path / "policy_request.json"
    assert read_policy_request(path, 1) is None
    write_policy_request(path, 1, "halt", "a test")
    assert read_policy_request(path, 1) == "halt"
    assert read_policy_request(path, 2) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"attempt": 1}', '{"attempt": 1, "policy": "explode"}'])
def test_a_damaged_one_does_not_count(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy_request.json"
    path.write_text(text)
    assert read_policy_request(path, 1) is None


def test_an_incident_as_a_line() -> None:
    record = {"finding": {"kind": "stall", "rank": 3}, "incident": "0001-stall-rank3", "action": "killed"}
    assert parse_incident(format_incident(record)) == record
    assert parse_incident("paceline-incident {torn") is None
    assert parse_incident("step 3") is None
