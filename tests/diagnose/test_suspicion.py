"""Whether one rank stands out: what bounds the error, and when somebody is accused and forgiven."""

from __future__ import annotations

from paceline.diagnose.suspicion import Suspicion, weigh_beginning


def test_the_weights_of_all_beginnings_add_up_to_one() -> None:
    """What bounds the error: a martingale for each beginning, and no more of them than one in all."""
    assert 0.999 < sum(map(weigh_beginning, range(1, 2000))) <= 1


def test_a_run_whose_ranks_are_often_loud_needs_more_to_accuse_one() -> None:
    quiet, loud = Suspicion(range(3), 0.005), Suspicion(range(3), 0.005)
    for suspicion, reached in ((quiet, 0), (loud, 40)):
        suspicion._num_blocks, suspicion._reached = 100, [reached] * 3
    assert quiet._clean_rates([0, 0, 0]) == [0.18, 0.05, 0.02]
    assert [round(rate, 3) for rate in loud._clean_rates([0, 0, 0])] == [0.2, 0.14, 0.098]


def test_one_that_stands_out_is_accused_after_some_steps_and_forgiven_after_some() -> None:
    suspicion = Suspicion(range(3), 0.005)
    clean, loud = {0: 0.01, 1: -0.01, 2: 0.0}, {0: 0.01, 1: 0.12, 2: 0.0}
    for _ in range(20):
        suspicion.add(clean, 5)
        assert suspicion.accused == []
    blocks = 0
    while not suspicion.accused:
        suspicion.add(loud, 5)
        blocks += 1
        assert blocks < 10
    assert suspicion.accused == [1]
    assert blocks * 5 >= 25  # who is slow once is no straggler
    assert suspicion.blocks_of_doubt(1) == blocks
    for _ in range(10):
        suspicion.add(clean, 5)
    assert suspicion.accused == []


def test_what_is_less_than_the_least_is_never_held_against_anybody() -> None:
    suspicion = Suspicion(range(2), 0.005)
    for number in range(400):
        suspicion.add({0: 0.0, 1: 0.0 if number < 20 else 0.035}, 5)
    assert suspicion.accused == []
