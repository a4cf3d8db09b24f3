"""Several hosts, seen from one of them: who is named, and who only waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.diagnose.limits import Limits
from paceline.diagnose.liveness import Liveness
from paceline.diagnose.naming import name_host
from paceline.diagnose.sight import Hearsay, Sight
from paceline.diagnose.stragglers import Stragglers
from paceline.diagnose.unseen import OTHER_HOST
from paceline.telemetry.run_file import Attempt, AttemptHost
from tests.diagnose.sights import Made

TWO = Attempt(1, 4, 1, 0.0, "", [], hosts=[AttemptHost(0, "a", "", 0, 2), AttemptHost(1, "b", "", 2, 2)])


class FromOneHost(Made):
    """Two hosts of two ranks each, as somebody on one of them sees them."""

    def __init__(self, here: str, *, hears: bool) -> None:
        super().__init__(4, hosts=("a", "b"))
        self._here = here
        self.hears = hears
        """pulses come from the other host"""
        self.silent_s = 0.0

    def sight(self, order=None) -> Sight:
        whole = super().sight(order)
        far = Hearsay(self.now if self.hears else None, self.silent_s)
        ranks = [
            seen
            if seen.host == self._here
            else replace(seen, process=None, pulse=seen.pulse if self.hears else None, hearsay=far)
            for seen in whole.ranks
        ]
        return replace(whole, ranks=tuple(ranks))


@pytest.mark.parametrize(("phase", "guilty"), [("data", 3), ("forward", 3), ("backward", None)])
def test_the_leader_names_the_rank_of_another_host_within_the_usual_limit(phase: str, guilty: int | None) -> None:
    run, liveness = FromOneHost("a", hears=True), Liveness(Limits())
    run.train(30, liveness, step_s=0.5)
    run.everybody(31, "backward")
    run.move(3, 31, phase)
    (found,), after_s = run.watch(liveness, 30)
    assert (found.kind, found.severity, found.rank) == ("stall", "critical", guilty)
    assert after_s is not None
    assert after_s <= Limits().stall_floor_s
    if guilty is not None:
        assert found.host == "b"
        assert "rank 3 on b in " in name_host(found, TWO).what


def test_a_member_whose_ranks_all_wait_accuses_nobody_and_is_alarmed_long_after_the_leader() -> None:
    run, liveness = FromOneHost("b", hears=False), Liveness(Limits())
    assert run.train(30, liveness, step_s=0.5) == []
    run.everybody(31, "backward")
    run.move(0, 31, "forward")
    (found,), after_s = run.watch(liveness, 30)
    assert after_s is not None
    assert after_s <= Limits().stall_floor_s
    assert (found.kind, found.severity, found.cause) == ("stall", "note", OTHER_HOST)
    assert (found.rank, found.ranks) == (None, ())
    assert "waiting, perhaps for a rank of another host: ranks 2 and 3 in backward of step 31" in found.what
    assert "ranks 0 and 1 of host a cannot be seen from here" in found.what
    began = run.now - after_s
    while found.severity == "note":
        run.wait()
        (found,) = liveness.see(run.sight())
        assert (found.cause, found.rank) == (OTHER_HOST, None)
    assert run.now - began == pytest.approx(60, abs=1)


@pytest.mark.parametrize(("phase", "is_proven"), [("data", True), ("forward", True), ("backward", False)])
def test_a_member_names_its_own_rank_only_where_that_waits_for_nobody(phase: str, is_proven: bool) -> None:
    run, liveness = FromOneHost("b", hears=False), Liveness(Limits())
    run.train(30, liveness, step_s=0.5)
    run.everybody(31, "optimizer")
    run.move(2, 31, phase)
    (found,), _ = run.watch(liveness, 30)
    assert (found.rank, found.severity) == ((2, "critical") if is_proven else (None, "note"))


def test_a_forward_that_nobody_here_has_left_and_a_collective_under_way_prove_nothing() -> None:
    for phase, more in (("forward", {}), ("data", {"collectives_enqueued": 5, "collectives_completed": 4})):
        run, liveness = FromOneHost("b", hears=False), Liveness(Limits())
        run.train(30, liveness, step_s=0.5)
        run.everybody(31, phase)
        run.move((2, 3), 31, phase, **more)
        (found,), _ = run.watch(liveness, 30)
        assert (found.rank, found.severity, found.cause) == (None, "note", OTHER_HOST)


def test_a_host_that_has_fallen_silent_is_named_and_its_ranks_are_not_accused() -> None:
    run, liveness = FromOneHost("a", hears=True), Liveness(Limits())
    run.train(30, liveness, step_s=0.5)
    run.everybody(31, "backward")
    run.move((2, 3), 31, "forward")  # as it was when the link went down
    began, found = run.now, []
    while not found:
        run.wait()
        run.silent_s = run.now - began if run.now - began > 2 else 0.0
        found = liveness.see(run.sight())
        assert run.now - began < 10
    assert (found[0].severity, found[0].cause, found[0].rank, found[0].host) == ("note", OTHER_HOST, None, "b")
    assert "of ranks 2 and 3 of host b nothing has been heard for" in found[0].what


def test_ranks_elsewhere_are_never_dead_and_own_ones_are() -> None:
    run, liveness = FromOneHost("b", hears=False), Liveness(Limits())
    run.train(10, liveness)
    for rank in (0, 1):
        run.become(rank, "gone", exit_code=-9)
    assert liveness.see(run.sight()) == []
    for rank in (2, 3):
        run.become(rank, "gone", exit_code=-9)
    (found,) = liveness.see(run.sight())
    assert (found.kind, found.ranks, found.host) == ("dead_rank", (2, 3), "b"), "who sees it is no dead host"
    assert name_host(found, TWO).what.startswith("ranks 2 and 3 on b of 4 were killed by SIGKILL")


def test_who_does_not_see_everybody_compares_nobody() -> None:
    run = FromOneHost("b", hears=False)
    stragglers = Stragglers()
    for step in range(1, 200):
        for rank, wait_ms in enumerate((9.0, 9.0, 9.0, 0.5)):
            old = run.pulses[rank]
            assert old is not None
            waits = {"waits": step, "waited_ms": step * wait_ms, "recent_ms": [wait_ms] * min(step, 64)}
            run.move(rank, step, "forward", **waits)
        run.wait(0.02)
        assert stragglers.see(run.sight()) == []


def test_one_that_is_ahead_alone_is_found_among_ranks_of_two_hosts() -> None:
    """Rank 1 waits in a collective that the others, here and there, have left out."""
    run, liveness = FromOneHost("a", hears=True), Liveness(Limits())
    run.train(30, liveness, step_s=0.5)
    run.everybody(31, "backward")
    run.move(1, 31, "optimizer")
    (found,), _ = run.watch(liveness, 30)
    assert (found.rank, found.cause, found.host) == (1, "collective", "a")


def test_a_host_is_named_once_behind_the_ranks_it_is_about() -> None:
    run, liveness = FromOneHost("a", hears=True), Liveness(Limits())
    run.train(30, liveness, step_s=0.5)
    run.everybody(31, "backward")
    run.move((2, 3), 31, "data")
    (found,), _ = run.watch(liveness, 30)
    named = name_host(found, TWO)
    assert "ranks 2 and 3 on b in data of step 31" in named.what
    assert name_host(named, TWO) == named
    assert name_host(replace(found, host=None), TWO) == named, "run.json knows where they are"
    assert name_host(replace(found, host=None, ranks=(1, 2)), TWO).host is None
    assert name_host(found, replace(TWO, hosts=TWO.hosts[:1])) == found
