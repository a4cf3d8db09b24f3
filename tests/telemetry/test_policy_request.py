from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.telemetry.incident_line import format_incident, parse_incident
from paceline.telemetry.policy_request import PolicyWish, read_policy_request


def test_a_wish_counts_for_its_attempt_alone_and_until_it_is_withdrawn(tmp_path: Path) -> None:
    wishes = tmp_path / "policy_requests"
    assert read_policy_request(wishes, 1) is None
    wish = PolicyWish(wishes, 1, "halt", "a test")
    assert read_policy_request(wishes, 1) == "halt"
    assert read_policy_request(wishes, 2) is None
    wish.withdraw()
    assert read_policy_request(wishes, 1) is None
    assert list(wishes.iterdir()) == []


def test_of_several_the_strictest_counts_and_each_takes_back_its_own(tmp_path: Path) -> None:
    first, second, third = (PolicyWish(tmp_path, 1, policy, "a test") for policy in ("halt", "note", "halt"))
    assert read_policy_request(tmp_path, 1) == "halt"
    first.withdraw()
    assert read_policy_request(tmp_path, 1) == "halt", "the third still wishes for it"
    third.withdraw()
    assert read_policy_request(tmp_path, 1) == "note"
    second.withdraw()
    assert read_policy_request(tmp_path, 1) is None


WISH = """
import sys, time
from pathlib import Path
from paceline.telemetry.policy_request import PolicyWish
wish = PolicyWish(Path(sys.argv[1]), 1, "halt", "a test")
print("wished", flush=True)
time.sleep(60)
"""


@pytest.mark.timeout(60)
def test_who_was_killed_wishes_for_nothing_any_more(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    watcher = subprocess.Popen([sys.executable, "-c", WISH, str(tmp_path)], stdout=subprocess.PIPE, env=environment)
    assert watcher.stdout is not None
    assert watcher.stdout.readline() == b"wished\n"
    assert read_policy_request(tmp_path, 1) == "halt"
    watcher.send_signal(signal.SIGKILL)
    watcher.communicate()
    assert len(list(tmp_path.iterdir())) == 1
    assert read_policy_request(tmp_path, 1) is None
    PolicyWish(tmp_path, 2, "halt", "a test").withdraw()
    assert list(tmp_path.iterdir()) == [], "a later attempt's watcher clears up"


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"attempt": 1}', '{"attempt": 1, "policy": "explode"}'])
def test_a_damaged_one_does_not_count(tmp_path: Path, text: str) -> None:
    wish = PolicyWish(tmp_path, 1, "halt", "a test")
    (path,) = tmp_path.iterdir()
    path.write_text(text)
    assert read_policy_request(tmp_path, 1) is None
    os.mkfifo(tmp_path / "pipe")
    assert read_policy_request(tmp_path, 1) is None
    wish.withdraw()


def test_an_incident_as_a_line() -> None:
    record = {"finding": {"kind": "stall", "rank": 3}, "incident": "0001-stall-rank3", "action": "killed"}
    assert parse_incident(format_incident(record)) == record
    assert parse_incident("paceline-incident {torn") is None
    assert parse_incident("step 3") is None
