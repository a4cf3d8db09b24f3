"""Which attempt belongs to a rank: that of its own launch, and only while rank 0 owns it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.telemetry.layout import RunLayout
from paceline.telemetry.sdk.agreement import Agreement
from paceline.telemetry.sdk.claim import Description, claim_run, find_attempt
from paceline.telemetry.sdk.ranks import Rank

FIRST = Rank(0, 2, "a:1, started by process 7", True)
SECOND = replace(FIRST, rank=1)
DESCRIPTION = Description("", {"recipe": "sdk", "lr": 0.1}, (), "start_run at train.py:3")


def test_a_rank_finds_the_attempt_of_its_launch(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    assert find_attempt(layout, SECOND) is None
    claim = claim_run(layout, DESCRIPTION, FIRST)
    assert find_attempt(layout, SECOND) == (claim.run.id, 1)
    assert find_attempt(layout, replace(SECOND, launch="a:1, started by process 8")) is None
    assert find_attempt(layout, replace(SECOND, world_size=4)) is None
    claim.finish("finished", "length", 5, 0)
    assert find_attempt(layout, SECOND) is None, "it has ended"
    claim.release()


def test_an_attempt_whose_owner_was_killed_is_nobodys(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    killed = claim_run(layout, DESCRIPTION, FIRST)
    killed.forget()  # what the system does when the process dies
    assert find_attempt(layout, SECOND) is None, "the same address, and it says running"
    claim = claim_run(layout, DESCRIPTION, FIRST)
    assert find_attempt(layout, SECOND) == (claim.run.id, 2)
    claim.finish("failed", "rank 1: ValueError", 3, 1)
    claim.finish("finished", "length", 5, 0)
    assert claim.run.reason == "rank 1: ValueError", "the first word stands"
    claim.release()


def test_what_one_rank_says_the_other_sees(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Agreement(tmp_path, create=False)
    first = Agreement(tmp_path, create=True)
    second = Agreement(tmp_path, create=False)
    assert (second.stop_step, second.failed_rank) == (None, None)
    first.stop_step = 20
    assert second.stop_step == 20
    second.tell_failure(1, patience_s=0.0)
    assert first.failed_rank == 1
    first.hear_failure()
    second.tell_failure(3, patience_s=100.0)  # heard: nobody waits
    assert first.failed_rank == 1, "the first one stands"
    for agreement in (first, second):
        agreement.close()
