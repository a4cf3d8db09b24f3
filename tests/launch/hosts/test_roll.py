"""Who is there, when it begins and who sits where: without sockets and without a clock."""

from __future__ import annotations

import pytest

from paceline.launch.hosts.endpoint import Count
from paceline.launch.hosts.message import Hello
from paceline.launch.hosts.roll import Roll
from tests.launch.hosts.conftest import FACTS, hello


def roll_of(count: Count, *others: Hello, mine: Hello | None = None) -> Roll:
    roll = Roll(count, mine or hello("a"), timeout_s=300, last_call_s=2)
    for each in others:
        assert roll.refuse(each) is None
        roll.confirm(roll.admit(each).index)
    return roll


def test_it_begins_at_once_when_all_are_there() -> None:
    roll = roll_of(Count(2, 2))
    roll.call(0.0)
    assert roll.decide(0.0) == "wait"
    entry = roll.admit(hello("b"))
    assert roll.decide(1.0) == "wait", "it has not seen the run directory yet"
    roll.confirm(entry.index)
    assert roll.decide(1.0) == "begin"


def test_the_least_number_waits_a_moment_for_more_and_begins() -> None:
    roll = roll_of(Count(1, 2))
    roll.call(0.0)
    assert [roll.decide(now) for now in (0.0, 1.9, 2.1)] == ["wait", "wait", "begin"]


def test_after_a_loss_those_who_are_left_go_on_at_once() -> None:
    roll = roll_of(Count(1, 2), hello("b"))
    roll.drop(1)
    roll.call(50.0, is_first=False)
    assert roll.decide(50.0) == "begin"


def test_too_few_are_waited_for_until_the_time_is_over() -> None:
    roll = roll_of(Count(3, 3), hello("b"))
    roll.call(100.0)
    assert roll.decide(399.0) == "wait"
    assert roll.decide(400.0) == "late"
    assert roll.describe() == "2 of 3 hosts here: a (10.9.0.1), 1 rank; b (10.9.0.2), 1 rank; 1 more host needed"


def test_the_leader_has_the_first_ranks_and_hosts_may_differ() -> None:
    roll = roll_of(Count(1, 3), hello("b", nproc=4), hello("c"), mine=hello("a", nproc=2))
    assert [
        (seat.index, seat.node_rank, list(range(seat.first_rank, seat.first_rank + seat.nproc))) for seat in roll.seat()
    ] == [
        (0, 0, [0, 1]),
        (1, 1, [2, 3, 4, 5]),
        (2, 2, [6]),
    ]
    assert str(roll.seat()[1]) == "host b (10.9.0.2) with ranks 2 to 5"


def test_a_gap_that_a_lost_host_leaves_is_closed_and_its_index_waits_for_it() -> None:
    roll = roll_of(Count(1, 3), hello("b"), hello("c"))
    roll.drop(1)
    assert [(seat.index, seat.node_rank, seat.first_rank) for seat in roll.seat()] == [(0, 0, 0), (2, 1, 1)]
    assert roll.admit(hello("b")).index == 1


def test_two_terminals_of_one_machine_are_two_hosts() -> None:
    roll = roll_of(Count(1, 3), hello("a"), hello("a"))
    assert [seat.index for seat in roll.seat()] == [0, 1, 2]


def test_a_host_that_comes_is_taken_in_and_one_that_leaves_is_let_go() -> None:
    roll = roll_of(Count(1, 2))
    seats = roll.seat()
    assert roll.wants_resize(seats) == ""
    roll.confirm(roll.admit(hello("b")).index)
    assert roll.wants_resize(seats) == "host b (10.9.0.2) has come"
    seats = roll.seat()
    assert roll.wants_resize(seats) == ""
    roll[1].is_leaving = True
    assert roll.wants_resize(seats) == "host b (10.9.0.2) leaves"
    assert [seat.index for seat in roll.seat()] == [0]


def test_who_comes_when_all_seats_are_taken_may_try_again() -> None:
    refusal = roll_of(Count(1, 2), hello("b")).refuse(hello("c"))
    assert refusal is not None
    error, is_final = refusal
    assert not is_final
    assert "2 hosts are here already" in str(error)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"v": 2}, "speaks version 2"),
        ({"fingerprint": "77aa", "identity": {"run.seed": 1}}, "run.seed: 0 → 1"),
        ({"facts": FACTS | {"host": "b", "torch": "2.12.1"}}, "torch is 2.13.0 on a and 2.12.1 on b"),
        ({"collectives": "nccl", "gpus": 1}, "the ranks of b would use nccl, those of the leader gloo"),
    ],
)
def test_who_does_not_fit_is_refused_with_the_word_that_differs(fields: dict, word: str) -> None:
    refusal = roll_of(Count(1, 2)).refuse(hello("b", **fields))
    assert refusal is not None
    error, is_final = refusal
    assert is_final
    assert error.exit_code == 2
    assert word in str(error)
    assert all((problem.where, problem.do) for problem in error.problems)


def test_a_host_on_which_the_command_was_typed_twice_is_said_to_be_here_twice() -> None:
    roll = roll_of(Count(3, 3), hello("b"), hello("b"))
    assert roll.describe().endswith("b (10.9.0.2), 1 rank; b (10.9.0.2) is here twice")
    assert "here t" not in roll_of(Count(2, 2), hello("b", address="10.9.0.9")).describe()
