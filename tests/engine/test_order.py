"""The order of samples depends on seed, epoch and position, and on nothing else."""

from __future__ import annotations

import numpy as np

from paceline.config.arithmetic import plan_batches
from paceline.engine.loader import plan_requests
from paceline.engine.order import SampleOrder


def ids(order: SampleOrder, epoch: int) -> list[int]:
    return [i for index in range(order.steps_per_epoch) for i in order.batch(epoch, index).tolist()]


def test_every_epoch_is_another_permutation_of_everything():
    order = SampleOrder(100, 32, 4, seed=3)
    assert sorted(ids(order, 0)) == sorted(ids(order, 1)) == list(range(100))
    assert ids(order, 0) != ids(order, 1)
    assert ids(order, 0) == ids(SampleOrder(100, 7, 15, seed=3), 0), (
        "the batch size cuts the order, it does not change it"
    )
    assert ids(order, 0) != ids(SampleOrder(100, 32, 4, seed=4), 0)
    state = np.random.get_state()[1].copy()
    ids(order, 5)
    assert (np.random.get_state()[1] == state).all(), "the global generator is left alone"


def test_a_resume_in_the_middle_sees_what_comes_next():
    def requests(first: int):
        order = SampleOrder(100, 32, 4, seed=3)
        return [
            (r.step, r.epoch, tuple(r.ids)) for r in plan_requests(order, plan_batches(32, 5, None, 3), 1, first, 11)
        ]

    everything = requests(1)
    assert requests(7) == [request for request in everything if request[0] >= 7]
    assert {epoch for _, epoch, _ in everything} == {0, 1, 2}
