"""What other hosts report is judged together with what the leader saw."""

from __future__ import annotations

from paceline.errors import RankLostError
from paceline.launch.hosts.message import Report
from paceline.launch.hosts.parts import Lost, Parts
from paceline.launch.process import RankExit
from paceline.launch.verdict import Evidence, judge
from tests.launch.test_verdict import LOST, end, failure


def test_alone_nothing_is_added() -> None:
    mine = Evidence(1, exits=[RankExit(0, -9, 1)])
    assert Parts().add_to(mine) is mine


def test_the_rank_that_died_on_another_host_is_named_although_ours_complained() -> None:
    theirs = Report(1, 1, exits=[[1, -9, 4711]])
    verdict = judge(Parts({1: theirs}).add_to(Evidence(1, failures=[LOST])))
    assert type(verdict.error) is RankLostError
    assert "rank 1 (pid 4711) was killed by signal 9" in verdict.reason


def test_what_a_rank_of_another_host_says_is_heard() -> None:
    theirs = Report(1, 1, failures=[failure(RankLostError("a cable was pulled"), 3)])
    assert judge(Parts({1: theirs}).add_to(Evidence(-9))).reason == "a cable was pulled"


def test_an_incident_of_another_host_counts() -> None:
    told = {"finding": {"what": "rank 1 stands still"}, "place": "incidents/0001", "action": "killed"}
    verdict = judge(Parts({1: Report(1, 1, incidents=[told])}).add_to(Evidence(-9)))
    assert (verdict.exit_code, verdict.reason) == (5, "halted: rank 1 stands still (incidents/0001)")


def test_the_end_that_all_ranks_agreed_on_stands_whatever_an_agent_did_afterwards() -> None:
    mine = Evidence(0, events=[end("finished", "length")])
    assert judge(Parts({1: Report(1, -9)}).add_to(mine)).exit_code == 0


def test_a_lost_host_is_named_with_its_ranks() -> None:
    verdict = judge(Parts(lost=[Lost(1, "host b with rank 1", "it closed the connection")]).add_to(Evidence(-9)))
    assert verdict.reason == "host b with rank 1 was lost: it closed the connection"
    assert verdict.is_host_lost
