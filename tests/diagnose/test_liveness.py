"""Whether a run is alive, from tables of sights: who is accused, when, and when nobody is."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from paceline.diagnose.finding import Finding
from paceline.diagnose.limits import Limits
from paceline.diagnose.liveness import Liveness
from paceline.diagnose.sight import Sight
from tests.diagnose.sights import START, Made, names


def started(world_size: int = 3, steps: int = 20, step_s: float = 0.05) -> tuple[Made, Liveness]:
    run, liveness = Made(world_size), Liveness(Limits())
    assert run.train(steps, liveness, step_s) == []
    return run, liveness


@pytest.mark.parametrize("phase", ["data", "forward", "backward", "optimizer"])
def test_the_rank_that_is_behind_is_named_within_the_floor(phase: str) -> None:
    run, liveness = started()
    run.move(1, 21, phase)
    run.move([0, 2], 21 if phase != "optimizer" else 22, "backward" if phase != "backward" else "optimizer")
    (found,), after = run.watch(liveness, 30)
    assert (found.kind, found.rank, found.cause, found.phase, found.step) == ("stall", 1, phase, phase, 21)
    assert found.severity == "critical"
    assert found.since == pytest.approx(START + 1.0)
    assert found.host == "a"
    assert after is not None
    assert 3.5 <= after <= 4.0  # told after 85 % of the 5 s: the rest is for the report


def test_the_limit_follows_the_pace_of_the_phase() -> None:
    run, liveness = started(steps=6, step_s=10.0)
    run.move(1, 7, "forward")
    run.move([0, 2], 7, "backward")
    (found,), after = run.watch(liveness, 100)
    assert found.rank == 1
    assert after is not None
    assert 14.25 <= after <= 15  # 5 × the 3 s of its forward
    assert "(told within its limit: 15 s, 5 × the 99th percentile of forward, 3 s)" in found.what


def test_the_pace_of_a_step_is_learned_from_looks_that_span_many() -> None:
    run, liveness = Made(2), Liveness(Limits())
    for first in range(1, 100, 20):
        for step in range(first, first + 20):
            run.everybody(step, "forward")
            run.wait(2.0)
        assert liveness.see(run.sight()) == []
    assert liveness.pace.p99("forward") == pytest.approx(2.0, rel=0.06)


def test_many_ranks_forget_no_sooner_than_a_few() -> None:
    limits = []
    for world_size in (2, 16):
        run, liveness = Made(world_size), Liveness(Limits())
        run.train(5, liveness, step_s=0.4)
        run.everybody(6, "data")
        assert liveness.see(run.sight()) == []
        run.wait(2.0)
        run.everybody(6, "forward")
        assert liveness.see(run.sight()) == []
        assert run.train(80, liveness, step_s=0.4) == []
        limits.append(liveness.pace.limit("data"))
    assert limits == pytest.approx([10.0, 10.0], rel=0.1), "5 × the 2 s that it took once"


def test_slow_steps_are_no_stall_even_before_there_is_history() -> None:
    run, liveness = Made(2), Liveness(Limits())
    run.everybody(1, "forward")
    assert run.watch(liveness, 233) == ([], None)
    run.everybody(1, "backward")
    assert run.watch(liveness, 233) == ([], None)


@pytest.mark.parametrize(
    ("phase", "limit_s"), [("evaluate", 1200), ("checkpoint", 1200), ("compile", 1800), ("start", 600)]
)
def test_a_rank_alone_in_a_phase_of_its_own_has_time(phase: str, limit_s: float) -> None:
    run, liveness = started() if phase != "start" else (Made(3), Liveness(Limits()))
    if phase == "start":
        run.move([1, 2], 1, "data")
    else:
        run.move([1, 2], 21, "backward")
        run.move(0, 20 if phase != "compile" else 21, phase)
    (found,), after = run.watch(liveness, 2000)
    assert (found.kind, found.rank, found.phase) == ("stall", 0, phase)
    assert after is not None
    assert limit_s - 1 <= after <= limit_s


def test_one_or_two_evaluations_say_nothing_about_the_next_and_five_do() -> None:
    run, liveness = started()
    limits = []
    for step in range(21, 27):
        run.everybody(step, "evaluate")
        run.wait(10)
        run.everybody(step + 1, "data")
        assert liveness.see(run.sight()) == []
        limits.append(liveness.pace.limit("evaluate"))
    assert limits == pytest.approx([1200, 1200, 50 * (1 + 2 / 3), 75, 50, 50])
    assert liveness.pace.limit("compile") == 1800


def test_a_busy_rank_among_waiting_ones_is_named() -> None:
    run, liveness = started()
    run.everybody(21, "backward")
    run.cores[2] = 1.0
    (found,), _ = run.watch(liveness, 30)
    assert (found.rank, found.cause) == (2, "backward")
    assert {witness.name: witness.agrees for witness in found.witnesses} == {"pulse": False, "process": True}


def test_nobody_is_accused_where_nobody_differs() -> None:
    run, liveness = started()
    run.everybody(21, "backward")
    (found,), after = run.watch(liveness, 30)
    assert (found.kind, found.rank, found.ranks) == ("stall", None, ())
    assert "no rank differs from the others" in found.what
    assert after is not None
    assert 3.5 <= after <= 4.25
    assert not any(witness.agrees for witness in found.witnesses)


def test_the_rank_that_did_not_begin_a_collective_is_named() -> None:
    run, liveness = started()
    run.move([0, 1], 21, "backward", collectives_enqueued=8)
    run.move(2, 21, "backward", collectives_enqueued=7)
    (found,), _ = run.watch(liveness, 30)
    assert (found.rank, found.cause) == (2, "collective")


def test_the_one_that_went_ahead_of_all_others_left_something_out() -> None:
    run, liveness = started()
    run.move([0, 2], 21, "forward")
    run.move(1, 21, "backward")
    (found,), _ = run.watch(liveness, 30)
    assert (found.rank, found.cause) == (1, "collective")
    run, liveness = started()
    run.move([0, 2], 21, "data")  # their own work: they are late together, as from one slow disk
    run.move(1, 21, "backward")
    (found,), _ = run.watch(liveness, 30)
    assert (found.rank, found.ranks, found.cause) == (None, (0, 2), "data")


def test_between_steps_collectives_tell_who_is_behind() -> None:
    run, liveness = started()
    run.move(0, 20, "checkpoint", collectives_enqueued=40)
    run.move([1, 2], 20, "evaluate", collectives_enqueued=42)
    for step in range(3):
        liveness.pace.learn(run.pulses[0], run.pulses[0]._replace(step=step, spent_s={"checkpoint": 0.1}), 0.0)
    (found,), _ = run.watch(liveness, 60)
    assert (found.rank, found.phase) == (0, "checkpoint")


def test_a_stopped_process_outranks_everything_and_going_on_is_no_stall() -> None:
    run, liveness = started()
    run.move(0, 21, "data")
    run.move([1, 2], 21, "backward")
    run.become(2, "stopped")
    found, after = run.watch(liveness, 30)
    assert names(found) == {"stopped": 2}
    assert "kill -CONT 1002" in found[0].do
    assert after is not None
    assert after <= 2
    run.wait(60)
    assert names(liveness.see(run.sight())) == {"stopped": 2}
    run.become(2, "running")
    for _ in range(4):  # it takes a moment until something moves
        run.wait()
        assert liveness.see(run.sight()) == []
    run.everybody(22, "data")
    assert liveness.see(run.sight()) == []
    assert liveness.pace.limit("backward") == 4.25  # the minute that they waited is no part of the pace


def test_a_rank_that_is_stopped_in_turns_is_slowed_down_and_not_stopped() -> None:
    run, liveness = started()
    for step in range(21, 60):
        run.everybody(step, "forward")
        run.cores[1] = 0.5
        run.wait()
        run.become(1, "stopped")
        assert liveness.see(run.sight()) == []
    run.cores[1] = 0.0  # a clock too coarse for it: what moves is not stopped
    for step in range(60, 80):
        run.everybody(step, "forward")
        run.wait()
        assert liveness.see(run.sight()) == []
    run.cores[1] = 0.5
    run.move([0, 2], 80, "backward")
    for _ in range(12):  # nor is one that is slow enough to be in one place for seconds
        run.wait()
        assert liveness.see(run.sight()) == []


def test_a_dead_rank_is_named_at_once_and_its_victims_are_not() -> None:
    run, liveness = started()
    run.become(1, "gone", exit_code=-9)
    found, after = run.watch(liveness, 30)
    assert names(found) == {"dead_rank": 1}
    assert (found[0].cause, after) == ("sigkill", 0.25)
    run.become(0, "gone", exit_code=1)
    run.become(2, "gone", exit_code=-15)
    assert names(liveness.see(run.sight())) == {"dead_rank": 1}


def test_of_ranks_that_died_together_the_killed_one_is_the_cause() -> None:
    run, liveness = started()
    for rank, code in ((0, 1), (1, -11), (2, -15)):
        run.become(rank, "gone", exit_code=code)
    found, _ = run.watch(liveness, 30)
    assert names(found) == {"dead_rank": 1}
    assert found[0].cause == "sigsegv"


@pytest.mark.parametrize(
    ("code", "how"), [(None, "have gone (their processes are no longer there)"), (-9, "were killed by SIGKILL")]
)
def test_several_that_died_are_several(code: int | None, how: str) -> None:
    run, liveness = started(2)
    for rank in (0, 1):
        run.become(rank, "gone", exit_code=code)
    (found,), _ = run.watch(liveness, 30)
    assert found.what.startswith(f"ranks 0 and 1 of 2 {how}, in ")


def test_a_host_whose_ranks_have_all_gone_is_one_finding() -> None:
    run, liveness = Made(4, ("a", "b")), Liveness(Limits())
    run.train(5, liveness, 0.05)
    for rank in (2, 3):
        run.become(rank, "gone")
    found, _ = run.watch(liveness, 30)
    assert [(each.kind, each.host, each.ranks) for each in found] == [("dead_host", "b", (2, 3))]


def test_ranks_that_left_after_their_last_word_are_not_dead() -> None:
    run, liveness = started()
    run.everybody(20, "end")
    for rank in range(3):
        run.become(rank, "gone")
    assert run.watch(liveness, 60) == ([], None)


def test_steps_that_become_much_slower_are_slow_and_not_hung() -> None:
    run, liveness = started(steps=80, step_s=0.5)
    assert run.train(3, liveness, 4.0) == []  # one long pause is none
    found = run.train(20, liveness, 2.0)
    assert {each.kind for each in found} == {"slow"}
    assert found[0].severity == "warning"
    assert "4.0 times as long as before" in found[-1].what


def test_who_comes_late_takes_the_ranks_word_for_how_long() -> None:
    run, liveness = Made(2), Liveness(Limits())
    run.train(20, None, 0.05)
    run.move(0, 21, "backward")
    run.move(1, 21, "data")
    run.wait(40)
    liveness.begin(run.sight())
    run.wait(1.5)
    (found,) = liveness.see(run.sight())
    assert (found.kind, found.rank) == ("stall", 1)
    assert found.numbers["held_s"] == pytest.approx(41.5)
    assert "(limit 4.25 s; 99 % of data take less than " in found.what


def test_a_clock_that_jumped_before_somebody_came_is_no_stall() -> None:
    run, liveness = Made(2), Liveness(Limits())
    run.train(20, None, 0.05)
    run.jump_s = 7200  # after the last beats
    liveness.begin(run.sight())
    assert liveness.see(run.sight()) == []
    run.wait()
    assert run.train(40, liveness, 0.05) == []


def test_a_rank_that_never_appears_is_late_only_while_the_others_wait_for_it() -> None:
    run, liveness = Made(3), Liveness(Limits())
    run.pulses[2] = run.processes[2] = None
    (found,), after = run.watch(liveness, 1000)
    assert (found.kind, found.rank, after) == ("stall", 2, 599.75)
    run, liveness = Made(3), Liveness(Limits())
    run.pulses[2] = run.processes[2] = None  # on a host that is not seen from here
    for _ in range(20):
        run.move([0, 1], run.pulses[0].step + 1, "forward")  # type: ignore[union-attr]
        assert run.watch(liveness, 100) == ([], None)


def test_clocks_that_jump_and_an_order_that_changes_accuse_nobody() -> None:
    """Seed 11: also torn readings, missing ranks, records of another attempt, states that are not known."""
    dice = random.Random(11)
    for _ in range(30):
        run, liveness = Made(4), Liveness(Limits())
        for _ in range(40):
            run.train(1, None, dice.choice([0.05, 0.2]))
            run.jump_s += dice.choice([0, 0, -7200, 3600, 0.5])
            kept = dict(run.pulses), dict(run.processes)
            for rank in range(4):
                match dice.randrange(8):
                    case 0:
                        run.pulses[rank] = None
                    case 1:
                        run.pulses[rank] = run.pulses[rank]._replace(attempt=2)
                    case 2:
                        run.processes[rank] = None
                    case 3:
                        run.become(rank, dice.choice(["unknown", "disk", "other", "running"]))
            order = list(range(4))
            dice.shuffle(order)
            sight = run.sight(order[: dice.randrange(5)])
            assert liveness.see(sight) == []
            run.pulses, run.processes = kept
    assert Liveness(Limits()).see(Sight(0.0, 0.0, 1, 4, ())) == []


def test_another_attempt_begins_from_nothing() -> None:
    run, liveness = started()
    run.move(1, 21, "data")
    run.move([0, 2], 21, "backward")
    assert run.watch(liveness, 30)[0]
    for rank in range(3):
        run.pulses[rank] = run.pulses[rank]._replace(attempt=2, step=0, phase="start")
    sight = replace(run.sight(), attempt=2)
    assert liveness.see(sight) == []


@pytest.mark.parametrize("between_s", [0.25, 0.5, 5.0])
def test_with_a_short_limit_a_rank_that_has_just_moved_has_not_stalled(between_s: float) -> None:
    """However far apart the looks are, three quarters of the limit (0.8 s) have to be over."""
    run, liveness = Made(2), Liveness(Limits(stall_floor_s=1.0, stall_factor=1.0))
    run.train(20, liveness, 0.02)
    for step in range(21, 60):
        run.move(0, step, "backward")
        run.move(1, step, "data")
        run.wait(min(between_s, 0.5))
        assert liveness.see(run.sight()) == []  # it moves at every look
    run.wait(between_s)
    found = liveness.see(run.sight())
    while not found:
        run.wait(between_s)
        found = liveness.see(run.sight())
    assert (found[0].rank, found[0].phase) == (1, "data")
    assert found[0].numbers["held_s"] >= 0.6


def test_a_rank_that_stays_behind_between_steps() -> None:
    """In a log, of which the pace is known: within the floor, as in a step."""
    run, liveness = started()
    for step in range(20, 26):
        run.everybody(step, "log")
        run.wait(0.01)
        run.everybody(step + 1, "data")
        assert liveness.see(run.sight()) == []
    run.move([1, 2], 27, "backward")
    run.move(0, 26, "log")
    (found,), after = run.watch(liveness, 30)
    assert (found.rank, found.phase) == (0, "log")
    assert after is not None
    assert 3.5 <= after <= 4.5


def plain(run: Made, steps: int, liveness: Liveness, step_s: float = 0.02) -> list[Finding]:
    """Steps of a loop that tells no phases."""
    found = []
    first = max(each.step for each in run.pulses.values() if each is not None) + 1
    for step in range(first, first + steps):
        run.everybody(step, "step")
        run.wait(step_s)
        if step % 12 == 0:
            found += liveness.see(run.sight())
    return found


def pause(run: Made, liveness: Liveness, seconds: float) -> list[Finding]:
    found = []
    for _ in range(int(4 * seconds)):
        run.wait()
        found += liveness.see(run.sight())
    return found


def test_a_pause_that_a_loop_does_not_declare_is_a_note_and_a_hang_there_is_a_stall_in_the_end() -> None:
    run, liveness = Made(1), Liveness(Limits())
    assert plain(run, 300, liveness) == []
    (found,), after = run.watch(liveness, 30)
    assert (found.kind, found.severity, found.rank, found.phase) == ("slow", "note", 0, "step")
    assert "may evaluate, save, or hang" in found.what
    assert after is not None
    assert 3.5 <= after <= 4.5, "noticed as early as any stall"
    assert {each.severity for each in pause(run, liveness, 8)} == {"note"}
    for _ in range(4):
        assert plain(run, 300, liveness) == []
        assert pause(run, liveness, 12) == [], "the last one was as long, and ended"
    assert plain(run, 300, liveness) == []
    assert liveness.pace.p99("step") < 0.1, "pauses are kept out of what is usual"
    found, after = run.watch(liveness, 100)
    assert after is not None
    assert 22 <= after <= 26
    stalls = [each for each in pause(run, liveness, 600) if each.kind == "stall"]
    assert (stalls[0].severity, stalls[0].rank) == ("critical", 0)
    assert 599 <= stalls[0].numbers["held_s"] <= 601


@pytest.mark.parametrize("phase", ["evaluate", "checkpoint", "log", "compile"])
@pytest.mark.parametrize("place", [(80, "step"), (81, "step"), (81, "backward")])
def test_whoever_waits_for_a_rank_that_evaluates_alone_is_not_hung(phase: str, place: tuple[int, str]) -> None:
    """In a loop that tells no phases, or not all, where the one that evaluates may count as further on."""
    run, liveness = started(2)
    assert plain(run, 60, liveness) == []
    run.move(0, 81 if place[1] == "step" else 80, phase)
    run.move(1, *place)
    assert pause(run, liveness, 200) == []


def evaluate(run: Made, liveness: Liveness, times: int, seconds: float) -> list[Finding]:
    """Each after some steps, and seen as `paceline watch` sees it."""
    found = []
    for _ in range(times):
        found += run.train(20, liveness, 0.05)
        run.everybody(run.pulses[0].step, "evaluate")  # type: ignore[union-attr]
        found += pause(run, liveness, seconds)
    return found


def test_a_full_test_after_quick_evaluations_is_noticed_and_a_policy_leaves_it_alone() -> None:
    run, liveness = started(1)
    assert evaluate(run, liveness, 6, 0.5) == []
    found = evaluate(run, liveness, 1, 25)
    assert {(each.kind, each.severity) for each in found} == {("stall", "critical")}
    assert found[0].numbers["held_s"] <= 4.25
    assert found[0].numbers["act_s"] == 300, "a quarter of supervise.evaluate_limit_s"
    assert "99 % of evaluate take less than 0.5 s; a policy acts after 300 s)" in found[0].what
    run.train(1, liveness, 0.05)
    assert liveness.pace.act_limit("forward") == liveness.pace.limit("forward") == 4.25, "a hang in a step is one"
    assert liveness.pace.act_limit("data") == 30, "an epoch may open its data anew"


def test_a_pause_that_was_called_a_stall_and_ended_is_expected_the_next_time() -> None:
    """Seven seconds in data with every epoch, while its loaders start."""
    run, liveness = started(2, steps=200, step_s=0.014)

    def begin_epoch(seconds: float = 7) -> list[Finding]:
        run.everybody(run.pulses[0].step + 1, "data")  # type: ignore[union-attr]
        assert pause(run, liveness, 1) == []
        run.move(0, run.pulses[0].step, "backward")  # type: ignore[union-attr]
        return pause(run, liveness, seconds - 1) + run.train(200, liveness, 0.014)

    assert {each.kind for each in begin_epoch()} == {"stall"}
    assert [begin_epoch() for _ in range(4)] == [[]] * 4
    assert liveness.pace.limit("backward") == 4.25, "who waited for it says nothing"
    (found, *_) = begin_epoch(20)
    assert 13 <= found.numbers["held_s"] <= 14
    assert (
        "(told within its limit: 13.5 s, 2 × the longest data that ended by itself; a policy acts after 30 s)"
        in found.what
    )


def test_whoever_waits_in_data_for_a_rank_that_does_not_say_what_it_does_is_not_hung() -> None:
    """Rank 0 saves undeclared after a step, and the other waits for its batch: `step` may be before `data`."""
    run, liveness = started(2)
    for step in range(21, 40):
        run.everybody(step, "step")
        assert liveness.see(run.sight()) == []
        run.wait(0.05)
        run.everybody(step, "data")
        assert liveness.see(run.sight()) == []
        run.wait(0.01)
    run.move(0, 40, "step")
    run.move(1, 40, "data")
    found = pause(run, liveness, 590)
    assert {(each.kind, each.severity) for each in found} == {("slow", "note")}
    run.move(0, 41, "step")  # another step is another place
    (found,), _ = run.watch(liveness, 30)
    assert (found.kind, found.rank, found.phase) == ("stall", 1, "data")
