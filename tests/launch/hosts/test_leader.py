"""A leader and its members in one process, over real sockets: coming together, an attempt, losses, refusals, goodbyes.

Shares of an attempt are stand-ins: test_share.py and tests/integration/test_hosts.py start real processes.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from paceline.errors import Interrupted, PacelineError, RendezvousError
from paceline.launch.hosts import joining
from paceline.launch.hosts import leader as leaders
from paceline.launch.hosts.endpoint import Count, Endpoint, find_free_port, open_listener
from paceline.launch.hosts.facts import collect_facts
from paceline.launch.hosts.joining import Door
from paceline.launch.hosts.leader import Leader
from paceline.launch.hosts.member import Member
from paceline.launch.hosts.message import Begin, Bye, Hello, Ready, Report, encode
from paceline.launch.hosts.nonce import read_nonce
from paceline.launch.hosts.roll import Roll
from paceline.launch.signals import OperatorSignals
from paceline.preflight.check import Check
from paceline.preflight.hosts_guest import Meeting, attend
from paceline.telemetry.layout import RunLayout
from tests.launch.hosts.conftest import hello

PULSES = Path("/nowhere")


@dataclass
class StandIn:
    """Ranks that do as they are told."""

    begin: Begin
    exit_code: int | None = None
    is_overdue: bool = False
    ended: threading.Event = field(default_factory=threading.Event)

    def poll(self) -> int | None:
        return self.exit_code

    def read_pulses(self) -> dict[str, str]:
        return {str(rank): "AAAA" for rank in self.begin.ranks}

    def check(self) -> None:
        pass

    def end(self, *, is_hasty: bool = False) -> Report:
        self.ended.set()
        return Report(self.begin.attempt, -9 if self.exit_code is None else self.exit_code)


class Other:
    """A member in a thread."""

    def __init__(self, endpoint: Endpoint, mine: Hello, *, timeout_s: float = 10, lost_after_s: float = 10) -> None:
        self.signals = OperatorSignals()
        self.said: list[str] = []
        self.shares: list[StandIn] = []
        self.bye: Bye | None = None
        self.error: BaseException | None = None
        door = Door(endpoint, mine, timeout_s=timeout_s, signals=self.signals, say=self.said.append)
        self._member = Member(
            door,
            self._start,  # type: ignore[arg-type]
            lost_after_s=lost_after_s,
            signals=self.signals,
            say=self.said.append,
        )
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _start(self, begin: Begin, index: int, root: Path) -> StandIn:
        self.shares.append(StandIn(begin))
        return self.shares[-1]

    def _run(self) -> None:
        try:
            self.bye = self._member.run()
        except BaseException as error:
            self.error = error

    def wait(self, timeout_s: float = 10) -> None:
        self.thread.join(timeout_s)
        assert not self.thread.is_alive(), self.said


class Stage:
    """A leader's surroundings."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.endpoint = Endpoint("127.0.0.1", find_free_port("127.0.0.1"))
        self.signals = OperatorSignals()
        self.said: list[str] = []
        self.others: list[Other] = []

    @contextlib.contextmanager
    def lead(
        self,
        count: Count,
        *,
        timeout_s: float = 10,
        lost_after_s: float = 10,
        can_resize: bool = True,
        last_call_s: float = 0.2,
    ) -> Iterator[Leader]:
        listener = open_listener(self.endpoint)
        assert listener is not None
        roll = Roll(count, hello("a", root=str(self.root)), timeout_s, last_call_s)
        layout = RunLayout(self.root)
        with (
            listener,
            Leader(
                listener, roll, layout, lost_after_s=lost_after_s, can_resize=can_resize, say=self.said.append
            ) as leader,
        ):
            yield leader

    def join(self, name: str, *, timeout_s: float = 10, lost_after_s: float = 10, **fields: object) -> Other:
        mine = hello(name, **{"root": str(self.root)} | fields)
        self.others.append(Other(self.endpoint, mine, timeout_s=timeout_s, lost_after_s=lost_after_s))
        return self.others[-1]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(joining, "_NONCE_S", 1.0)
    monkeypatch.setattr(joining, "_ANSWER_S", 1.0)
    monkeypatch.setattr(leaders, "_SETTLE_S", 0.3)
    made = Stage(tmp_path / "run")
    yield made
    for other in made.others:
        other.signals.asked, other.signals.wants_kill = "ctrl_c", True
        other.wait()


def begin(leader: Leader, signals: OperatorSignals, attempt: int = 1) -> Begin:
    leader.gather(signals, is_first=attempt == 1)
    leader.seat()
    return leader.begin(attempt, "abc", PULSES, f"paceline-{attempt}", False)


def until(leader: Leader, is_true) -> None:
    deadline = time.monotonic() + 10
    while not is_true():
        assert time.monotonic() < deadline
        leader.poll()
        time.sleep(0.02)


@pytest.mark.timeout(60)
def test_they_come_together_train_and_say_goodbye(stage: Stage) -> None:
    other = stage.join("b", nproc=2)
    with stage.lead(Count(2, 2)) as leader:
        mine = begin(leader, stage.signals)
        until(leader, lambda: other.shares)
        theirs = other.shares[0].begin
        assert (mine.node_rank, list(mine.ranks), theirs.node_rank, list(theirs.ranks)) == (0, [0], 1, [1, 2])
        assert (theirs.master_addr, theirs.world_size, theirs.rendezvous_id) == ("127.0.0.1", 3, "paceline-1")
        other.shares[0].exit_code = 0
        parts = leader.finish("all is done", is_well=True)
        assert (parts.reports[1].agent_exit, parts.lost) == (0, [])
        leader.dismiss(Bye("finished", "length", 40, 0))
    other.wait()
    assert other.bye == Bye("finished", "length", 40, 0)
    assert any("2 of 2 hosts here" in line for line in other.said), "each host says who is there"
    assert not RunLayout(stage.root).rendezvous.exists()


@pytest.mark.timeout(60)
def test_a_member_that_fails_ends_the_attempt_for_all(stage: Stage) -> None:
    others = [stage.join("b"), stage.join("c")]
    with stage.lead(Count(3, 3)) as leader:
        begin(leader, stage.signals)
        until(leader, lambda: all(other.shares for other in others))
        assert not leader.is_over
        others[0].shares[0].exit_code = 1
        until(leader, lambda: leader.is_over)
        parts = leader.finish("a rank died", is_well=False)
        assert sorted(report.agent_exit for report in parts.reports.values()) == [-9, 1]
        assert others[1].shares[0].ended.is_set()
        assert "ending attempt 1: a rank died" in others[1].said


@pytest.mark.timeout(60)
def test_a_member_that_goes_away_is_lost_with_its_ranks_and_the_rest_goes_on(stage: Stage) -> None:
    gone, other = stage.join("b"), stage.join("c")
    with stage.lead(Count(2, 3), last_call_s=8) as leader:
        begin(leader, stage.signals)
        until(leader, lambda: gone.shares and other.shares)
        gone.signals.asked, gone.signals.wants_kill = "ctrl_c", True  # leaves at once: the connection closes
        until(leader, lambda: leader.is_over)
        parts = leader.finish("a host was lost", is_well=False)
        rank = gone.shares[0].begin.first_rank
        what = f"host b (10.9.0.2) with rank {rank} was lost: it closed the connection"
        assert [str(each) for each in parts.lost] == [what]
        assert gone.shares[0].ended.wait(5), "its own ranks have ended, too"
        mine = begin(leader, stage.signals, attempt=2)
        assert (mine.world_size, mine.nnodes) == (2, 2)
        until(leader, lambda: len(other.shares) == 2)
    assert isinstance(gone.error, Interrupted)


@pytest.mark.timeout(60)
def test_a_host_that_comes_later_waits_and_is_asked_in(stage: Stage) -> None:
    with stage.lead(Count(1, 2)) as leader:
        assert begin(leader, stage.signals).nnodes == 1
        assert leader.wants_resize == ""
        other = stage.join("b")
        until(leader, lambda: leader.wants_resize)
        assert leader.wants_resize == "host b (10.9.0.2) has come"
        assert leader.finish("resize", is_well=True).reports == {}
        assert begin(leader, stage.signals, attempt=2).world_size == 2
        until(leader, lambda: other.shares)


@pytest.mark.timeout(60)
def test_without_checkpoints_nobody_is_taken_in_before_the_next_attempt(stage: Stage) -> None:
    with stage.lead(Count(1, 2), can_resize=False) as leader:
        begin(leader, stage.signals)
        other = stage.join("b")
        until(leader, lambda: len(leader.roll.present) == 2)
        assert leader.wants_resize == ""
        until(leader, lambda: any("waits for the next attempt" in line for line in other.said))


@pytest.mark.timeout(60)
def test_a_host_whose_operator_leaves_stops_with_the_others_and_is_let_go(stage: Stage) -> None:
    other = stage.join("b")
    with stage.lead(Count(1, 2), last_call_s=8) as leader:
        begin(leader, stage.signals)
        until(leader, lambda: other.shares)
        other.signals.asked = "ctrl_c"
        until(leader, lambda: leader.wants_resize)
        assert leader.wants_resize == "host b (10.9.0.2) leaves"
        assert not other.shares[0].ended.is_set(), "its ranks still train"
        other.shares[0].exit_code = 0
        leader.finish("resize", is_well=True)
        assert begin(leader, stage.signals, attempt=2).nnodes == 1
        until(leader, lambda: not other.thread.is_alive())
    assert other.bye == Bye("stopped", "left", None, 130)


@pytest.mark.timeout(60)
def test_a_member_without_its_leader_ends_its_ranks_and_finds_the_next_one(stage: Stage) -> None:
    other = stage.join("b")
    for attempt in (1, 2):
        with stage.lead(Count(2, 2)) as leader:
            begin(leader, stage.signals, attempt=1)
            until(leader, lambda: len(other.shares) == attempt)  # noqa: B023
        assert other.shares[-1].ended.wait(5)
    assert any("the leader was lost" in line and "ending the ranks" in line for line in other.said)


@pytest.mark.timeout(60)
def test_a_leader_of_which_nothing_is_heard_is_lost(stage: Stage) -> None:
    """The connection stays open and nothing passes any more, as after a cut."""
    other = stage.join("b", lost_after_s=1.5)
    with stage.lead(Count(2, 2)) as leader:
        begin(leader, stage.signals)
        until(leader, lambda: other.shares)
        leader._channels[1]._send_whole = lambda data: None  # type: ignore[method-assign]
        assert other.shares[0].ended.wait(5)
        assert any("nothing was heard of it for 1.5 s; ending the ranks" in line for line in other.said)


@pytest.mark.timeout(60)
def test_a_member_of_which_nothing_is_heard_is_lost(stage: Stage) -> None:
    with (
        stage.lead(Count(2, 2), lost_after_s=1.5) as leader,
        socket.create_connection(("127.0.0.1", stage.endpoint.port)) as silent,
    ):
        silent.sendall(encode(hello("b")) + encode(Ready(read_nonce(stage.root))))
        begin(leader, stage.signals)
        began = time.monotonic()
        until(leader, lambda: leader.is_over)
        assert time.monotonic() - began < 5
        parts = leader.finish("a host was lost", is_well=False)
        assert [each.why for each in parts.lost] == ["nothing was heard of it for 1.5 s"]


@pytest.mark.timeout(60)
def test_a_rendezvous_that_never_fills_ends_with_who_is_missing(stage: Stage) -> None:
    stage.join("b")
    with stage.lead(Count(3, 3), timeout_s=1.5) as leader:
        with pytest.raises(RendezvousError) as caught:
            leader.gather(stage.signals)
        what = caught.value.problems[0].what
        assert what.startswith("not enough hosts came in time: 2 of 3 hosts here: a (10.9.0.1), 1 rank; b (10.9.0.2)")
        assert what.endswith("1 more host needed")


@pytest.mark.timeout(60)
def test_an_error_of_the_leader_reaches_its_members(stage: Stage) -> None:
    other = stage.join("b")

    def fail() -> None:
        with stage.lead(Count(2, 2)) as leader:
            leader.gather(stage.signals)
            raise PacelineError("the disk is full", "here", "free some space")

    with pytest.raises(PacelineError, match="the disk is full"):
        fail()
    other.wait()
    assert other.bye is not None
    assert (other.bye.state, other.bye.exit_code) == ("failed", 4)
    assert other.bye.error is not None
    assert other.bye.error["problems"][0]["what"] == "the disk is full"


@pytest.mark.timeout(60)
def test_whoever_does_not_fit_is_refused_and_the_others_do_not_mind(stage: Stage) -> None:
    stranger, fitting = stage.join("c", fingerprint="77aa", identity={"run.seed": 1}), stage.join("b")
    with stage.lead(Count(2, 2)) as leader:
        leader.gather(stage.signals)
        until(leader, lambda: not stranger.thread.is_alive())
        assert "run.seed: 0 → 1" in str(stranger.error)
        assert isinstance(stranger.error, RendezvousError)
        assert fitting.thread.is_alive()


@pytest.mark.timeout(60)
def test_a_host_that_sees_another_directory_is_not_taken_in(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "read_nonce", lambda root: "")
    other = stage.join("b", root="/elsewhere/run")
    with stage.lead(Count(1, 2), timeout_s=3) as leader:
        until(leader, lambda: not other.thread.is_alive())
        assert isinstance(other.error, RendezvousError)
        assert "does not see the leader's run directory" in str(other.error)
        assert "/elsewhere/run" in other.error.problems[0].where
        assert len(leader.roll.present) == 1
        until(leader, lambda: any("does not see" in line for line in stage.said))


@pytest.mark.timeout(60)
def test_a_host_that_only_says_that_it_is_ready_is_not_believed(stage: Stage) -> None:
    with (
        stage.lead(Count(1, 2)) as leader,
        socket.create_connection(("127.0.0.1", stage.endpoint.port)) as liar,
    ):
        liar.sendall(encode(hello("b")) + encode(Ready("guessed")))
        until(leader, lambda: any("it did not read the run directory" in line for line in stage.said))
        assert len(leader.roll.present) == 1


@pytest.mark.timeout(60)
def test_nobody_there_is_said_again_and_again_and_ends(stage: Stage) -> None:
    other = stage.join("b", timeout_s=1.0)
    other.wait()
    assert isinstance(other.error, RendezvousError)
    assert f"no leader answered at {stage.endpoint} within 1 s: Connection refused" in str(other.error)
    assert other.said[0].startswith(f"waiting for the leader at {stage.endpoint}")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("words", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""], ids=["talks", "is silent"])
def test_another_program_on_the_port_is_recognised(stage: Stage, words: bytes) -> None:
    with socket.create_server(("127.0.0.1", stage.endpoint.port)) as server:
        other = stage.join("b")
        accepted, _ = server.accept()
        with accepted:
            accepted.sendall(words)
            other.wait()
    assert isinstance(other.error, RendezvousError)
    assert "another program listens at" in str(other.error)


@pytest.mark.timeout(60)
def test_whoever_only_looks_at_the_port_does_no_harm(stage: Stage) -> None:
    """A port scanner, a browser, somebody who says nothing."""
    with stage.lead(Count(2, 2)) as leader:
        with socket.create_connection(("127.0.0.1", stage.endpoint.port)) as browser:
            browser.sendall(b"GET / HTTP/1.1\r\n\r\n")
            socket.create_connection(("127.0.0.1", stage.endpoint.port)).close()
            other = stage.join("b")
            leader.gather(stage.signals)
        assert len(leader.roll.present) == 2
        assert other.thread.is_alive()


@pytest.mark.timeout(60)
def test_one_too_many_is_told_that_there_is_no_place_and_not_that_nobody_answered(stage: Stage) -> None:
    first = stage.join("b")
    with stage.lead(Count(2, 2)) as leader:
        begin(leader, stage.signals)
        until(leader, lambda: first.shares)
        third = stage.join("c", timeout_s=0.5)
        until(leader, lambda: third.error is not None)
    assert isinstance(third.error, RendezvousError)
    problem = third.error.problems[0]
    assert problem.what.startswith(f"the leader at {stage.endpoint} took nobody in within 0.5 s: 2 hosts are here")
    assert problem.do == "end one of them, or start all with a larger --nnodes"
    assert any("waiting for a place with the leader" in line for line in third.said)


@pytest.mark.timeout(60)
def test_a_preflight_that_comes_to_a_training_is_told_so(stage: Stage) -> None:
    meeting = Meeting("127.0.0.1", "127.0.0.1", stage.endpoint.port, 2, 2, 5)
    found: list[list[Check]] = []
    visitor = threading.Thread(target=lambda: found.append(attend(meeting, collect_facts("127.0.0.1", 1))))
    with stage.lead(Count(2, 2)) as leader:
        visitor.start()
        until(leader, lambda: found)
    visitor.join(10)
    ((check,),) = found
    assert f"a training leads at {stage.endpoint}, and no preflight" in check.found
    assert "at another port" in check.remedy
    assert not any("refused" in line for line in stage.said), "nothing that the run has to do with"
