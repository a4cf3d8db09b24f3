from __future__ import annotations

import pytest

from paceline.errors import (
    CheckpointError,
    DataError,
    DesyncError,
    HaltedError,
    Interrupted,
    NonFiniteError,
    OutOfMemoryError,
    PacelineError,
    RankLostError,
    StorageError,
    UsageError,
)
from paceline.launch.process import RankExit
from paceline.launch.verdict import Evidence, judge


def failure(error: PacelineError, rank: int, *, secondary: bool = False, step: int | None = 3) -> dict[str, object]:
    return error.to_record() | {"rank": rank, "step": step, "secondary": secondary, "traceback": "Traceback …"}


def end(state: str, reason: str, step: int = 9) -> dict[str, object]:
    return {"kind": "end", "state": state, "reason": reason, "step": step}


LOST = failure(RankLostError("the others have gone"), 0, secondary=True)


@pytest.mark.parametrize(
    ("state", "reason", "exit_code"),
    [
        ("finished", "finished", 0),
        ("finished", "early_stop", 0),
        ("stopped", "max_hours", 0),
        ("stopped", "stop_command", 0),
        ("stopped", "ctrl_c", 130),
        ("stopped", "sigterm", 130),
    ],
)
def test_an_attempt_that_ended_as_agreed(state: str, reason: str, exit_code: int) -> None:
    verdict = judge(Evidence(0, events=[end(state, reason)], asked=reason if exit_code else None))
    assert (verdict.state, verdict.reason, verdict.step, verdict.exit_code) == (state, reason, 9, exit_code)
    assert verdict.error is None


@pytest.mark.parametrize(
    ("error", "exit_code"), [(DataError("no file"), 2), (NonFiniteError("nan"), 4), (StorageError("full"), 4)]
)
def test_the_cause_comes_before_its_victims(error: PacelineError, exit_code: int) -> None:
    cause = RankExit(rank=0, exit_code=4, pid=1)
    verdict = judge(Evidence(1, failures=[LOST, failure(error, 1)], exits=[cause]))
    assert (verdict.state, verdict.exit_code, verdict.step) == ("failed", exit_code, 3)
    assert type(verdict.error) is type(error)
    assert verdict.traceback == "Traceback …"


def test_a_failure_that_only_the_events_tell() -> None:
    event = failure(DataError("no file"), 1) | {"kind": "failure"}
    assert judge(Evidence(1, failures=[LOST], events=[event])).exit_code == 2


def test_a_killed_rank_is_named_although_its_peer_complained() -> None:
    exits = [RankExit(0, 4, 4710), RankExit(1, -9, 4711)]
    verdict = judge(Evidence(1, failures=[LOST], exits=exits, last_step=12, logs="runs/a/logs/"))
    assert isinstance(verdict.error, RankLostError)
    problem = verdict.error.problems[0]
    assert problem.what == "rank 1 (pid 4711) was killed by signal 9 (SIGKILL; often the out-of-memory killer)"
    assert problem.where == "runs/a/logs/rank_00001.log"
    assert (verdict.exit_code, verdict.step) == (4, 12)


def test_a_rank_that_had_to_be_killed_afterwards_is_not_the_cause() -> None:
    verdict = judge(Evidence(1, exits=[RankExit(2, 3, 4711), RankExit(0, -15, 4712), RankExit(1, -9, 4713)]))
    assert "rank 2" in verdict.reason


def test_a_rank_that_went_without_a_word() -> None:
    verdict = judge(Evidence(1, exits=[RankExit(2, 3, 4711)]))
    assert "rank 2 (pid 4711) ended with exit code 3" in verdict.reason
    assert verdict.exit_code == 4


def test_only_victims_are_heard_of() -> None:
    verdict = judge(Evidence(1, failures=[LOST]))
    assert (verdict.reason, verdict.exit_code) == ("the others have gone", 4)


def test_a_launcher_that_never_got_going_shows_its_last_lines() -> None:
    verdict = judge(Evidence(1, tail=["", "No module named torch.distributed.run"]))
    assert verdict.exit_code == 4
    assert "No module named torch.distributed.run" in verdict.reason
    assert "signal 9" in judge(Evidence(-9)).reason
    assert judge(Evidence(0)).state == "failed"


def test_the_operator_wanted_it_dead() -> None:
    verdict = judge(Evidence(-9, failures=[LOST], exits=[RankExit(0, -9, 1)], asked="ctrl_c", killed=True, last_step=5))
    assert (verdict.state, verdict.reason, verdict.exit_code, verdict.step) == ("stopped", "ctrl_c", 130, 5)


def test_ranks_that_stumble_while_they_are_stopped_did_not_fail() -> None:
    verdict = judge(Evidence(1, failures=[LOST], exits=[RankExit(0, -15, 1)], asked="sigterm"))
    assert (verdict.state, verdict.reason, verdict.exit_code) == ("stopped", "sigterm", 130)
    assert judge(Evidence(1, failures=[failure(StorageError("full"), 0)], asked="ctrl_c")).exit_code == 4
    assert judge(Evidence(1, exits=[RankExit(1, -9, 7)], asked="ctrl_c")).exit_code == 4


def test_an_agent_that_was_told_to_end_is_no_failure() -> None:
    verdict = judge(Evidence(1, events=[end("stopped", "sigterm")]))
    assert (verdict.state, verdict.reason, verdict.exit_code) == ("stopped", "sigterm", 130)
    killed = judge(Evidence(1, exits=[RankExit(1, -9, 4711)], events=[end("stopped", "sigterm")]))
    assert killed.state == "failed"


@pytest.mark.parametrize(
    ("kind", "is_worth_it"),
    [
        (PacelineError, True),
        (RankLostError, True),
        (UsageError, False),
        (DataError, False),
        (CheckpointError, False),
        (StorageError, False),
        (NonFiniteError, False),
        (OutOfMemoryError, False),
        (DesyncError, False),
        (Interrupted, False),
    ],
)
def test_what_is_worth_another_attempt(kind: type[PacelineError], is_worth_it: bool) -> None:
    verdict = judge(Evidence(1, failures=[failure(kind("what"), 0)]))
    assert verdict.is_worth_restarting == is_worth_it


def test_a_killed_rank_is_worth_another_attempt_and_an_end_is_not() -> None:
    assert judge(Evidence(1, exits=[RankExit(1, -9, 4711)])).is_worth_restarting
    assert not judge(Evidence(0, events=[end("finished", "length")])).is_worth_restarting
    assert not judge(Evidence(0, events=[end("stopped", "ctrl_c")], asked="ctrl_c")).is_worth_restarting


def incident(action: str) -> dict[str, object]:
    finding = {"kind": "stall", "what": "rank 1 stands still", "do": "look"}
    return {"finding": finding, "place": "incidents/0001-stall-rank1", "policy": "halt", "action": action}


def test_what_the_supervisor_ended_is_halted_whatever_the_ranks_say_of_it() -> None:
    exits = [RankExit(0, -9, 1), RankExit(1, -9, 2)]
    told = [incident("none"), incident("killed")]
    verdict = judge(Evidence(agent_exit=1, failures=[LOST], exits=exits, incidents=told, last_step=7))
    assert (verdict.state, verdict.exit_code, verdict.step) == ("failed", 5, 7)
    assert isinstance(verdict.error, HaltedError)
    assert verdict.error.problems[0].what == "rank 1 stands still"
    assert verdict.error.problems[0].where == "incidents/0001-stall-rank1"
    assert not verdict.is_worth_restarting
    assert judge(Evidence(agent_exit=1, exits=exits, incidents=[incident("restarted")])).is_worth_restarting
    # Where another process supervises the run, its events tell.
    events = [{"kind": "incident", **incident("killed")}]
    assert judge(Evidence(agent_exit=1, exits=exits, events=events)).exit_code == 5


def test_an_agreed_stop_that_the_supervisor_asked_for_is_a_stop() -> None:
    verdict = judge(Evidence(agent_exit=0, events=[end("stopped", "halted")], incidents=[incident("asked")]))
    assert (verdict.state, verdict.exit_code, verdict.step) == ("stopped", 5, 9)
    assert isinstance(verdict.error, HaltedError)
    assert not verdict.is_worth_restarting


def test_who_was_asked_to_halt_and_ended_before_that_ended_as_he_says() -> None:
    finished = judge(Evidence(agent_exit=0, events=[end("finished", "length")], incidents=[incident("asked")]))
    assert (finished.state, finished.exit_code, finished.error) == ("finished", 0, None)
    failures = [failure(NonFiniteError("not a number"), 0)]
    assert isinstance(judge(Evidence(1, failures=failures, incidents=[incident("asked")])).error, NonFiniteError)


def test_an_incident_that_was_only_noted_changes_no_verdict() -> None:
    verdict = judge(Evidence(agent_exit=0, events=[end("finished", "length")], incidents=[incident("none")]))
    assert (verdict.state, verdict.exit_code, verdict.error) == ("finished", 0, None)
    killed = judge(Evidence(agent_exit=1, killed=True, asked="ctrl_c", incidents=[incident("killed")]))
    assert (killed.state, killed.exit_code) == ("stopped", 130)


GONE = "host b (10.9.0.2) with rank 1 was lost: nothing was heard of it for 10 s"


def test_a_lost_host_comes_before_what_the_others_say_of_their_end() -> None:
    stalled = {
        "kind": "incident",
        "finding": {"what": "rank 0 stands still"},
        "place": "incidents/1",
        "action": "killed",
    }
    for evidence in (
        Evidence(-9, failures=[LOST], lost=[GONE]),
        Evidence(-9, failures=[failure(PacelineError("KeyError: 'x'"), 0)], lost=[GONE]),
        Evidence(-9, incidents=[stalled], lost=[GONE]),
        Evidence(None, exits=[RankExit(0, -9, 4711)], lost=[GONE]),
    ):
        verdict = judge(evidence)
        assert (verdict.state, verdict.reason, verdict.exit_code, verdict.is_host_lost) == ("failed", GONE, 4, True)
        assert type(verdict.error) is RankLostError


def test_a_host_that_is_lost_after_the_end_or_while_it_is_stopped_is_no_failure() -> None:
    verdict = judge(Evidence(0, events=[end("finished", "length")], lost=[GONE]))
    assert (verdict.state, verdict.exit_code, verdict.is_host_lost) == ("finished", 0, False)
    verdict = judge(Evidence(-9, asked="ctrl_c", lost=[GONE]))
    assert (verdict.state, verdict.exit_code, verdict.is_host_lost) == ("stopped", 130, False)


def test_a_stop_for_another_size_is_a_stop_without_an_error() -> None:
    verdict = judge(Evidence(0, events=[end("stopped", "resize")]))
    assert (verdict.state, verdict.reason, verdict.exit_code, verdict.error) == ("stopped", "resize", 0, None)
