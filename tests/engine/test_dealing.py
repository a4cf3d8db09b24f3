"""Samples of a step dealt by their lengths: alike within a micro-step, even between ranks, the same everywhere; and nobody else's order."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.config.arithmetic import plan_batches, plan_length
from paceline.engine.dealing import deal, find_measure
from paceline.engine.loader import Loader, plan_requests
from paceline.engine.order import SampleOrder
from paceline.engine.ranks import Ranks
from paceline.errors import UsageError
from paceline.workload import Draw
from tests.engine.conftest import Regression
from tests.engine.test_contrast import expect, train
from tests.engine.towers import Alignment, Pairs


class Spoken(Pairs):
    """Pairs of many lengths, others in every epoch; remembers what was drawn with."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.draws: list[Draw] = []

    def lengths(self, ids, draw: Draw) -> np.ndarray:
        return np.array([(7 * number + 5 * draw.epoch) % 11 for number in ids])

    def fetch(self, ids, draw: Draw):
        self.draws.append(draw)
        return super().fetch(ids, draw)


class Speech(Alignment):
    def __init__(self) -> None:
        super().__init__()
        self._train = Spoken(29)


def test_the_example():
    lengths = np.array([9, 1, 5, 8, 2, 6])
    assert lengths[deal(lengths, plan_batches(6, None, 2, 2))].tolist() == [9, 6, 1, 8, 5, 2]


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("accumulate", [1, 2, 5])
@pytest.mark.parametrize("count", [1, 3, 64, 101])
def test_neighbours_in_length_share_a_micro_step(world_size, accumulate, count):
    lengths = np.random.default_rng(count).integers(10, 60, count)
    plan = plan_batches(128, None, accumulate, world_size)
    dealt = deal(lengths, plan)
    assert sorted(dealt.tolist()) == list(range(count)), "each sample once"
    slices = [plan.slice(count, rank) for rank in range(world_size)]
    shortest = np.inf
    for micro_step in range(accumulate):
        rows = [lengths[dealt[slice(*slices[rank][micro_step])]] for rank in range(world_size)]
        there = np.concatenate(rows)
        if not len(there):
            continue
        assert there.max() <= shortest, "longest first, on all ranks together"
        shortest = there.min()
        full = [row.sum() for row in rows if len(row) == max(map(len, rows))]
        assert max(full) - min(full) <= there.max() - there.min(), "no rank has all the longer ones"


def test_equal_lengths_keep_their_order():
    assert deal(np.ones(7), plan_batches(7, None, None, 1)).tolist() == list(range(7))


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_loader_deals_the_batch_of_the_step_and_draws_as_ever(make_context, world_size):
    sections = {"train": {"global_batch": 13, "micro_batch": 4}}
    order = SampleOrder(29, 13, 3, seed=0)
    seen: dict[int, list[int]] = {}
    for rank in range(world_size):
        workload = Speech()
        context = make_context(sections, rank=rank, world_size=world_size)
        samples, length = workload.train_set(), plan_length(context.config.train, 29)
        loader = Loader(context, samples, length, find_measure(workload, samples, 0))
        items = list(loader.load(1, 6))
        assert [item.ids for item in loader.load(5, 6)] == [item.ids for item in items if item.step >= 5], "resumed"
        for item, draw in zip(items, samples.draws, strict=False):
            seen.setdefault(item.step, []).extend(item.ids)
            assert list(draw.batch) == order.batch(item.epoch, (item.step - 1) % 3).tolist(), "however it is dealt"
    for step, ids in seen.items():
        assert sorted(ids) == sorted(order.batch(*divmod(step - 1, 3)).tolist())
    assert seen[1] != order.batch(0, 0).tolist()


def test_only_where_the_loss_is_of_the_whole_step_and_lengths_are_known():
    assert find_measure(Speech(), Spoken(29), 0) is not None
    assert find_measure(Alignment(), Pairs(29), 0) is None
    assert find_measure(Regression(), Spoken(29), 0) is None
    plan, order = plan_batches(13, None, None, 2), SampleOrder(29, 13, 3, seed=0)
    (plain,) = plan_requests(order, plan, 1, 2, 2)
    assert plain.ids == order.batch(0, 1)[6:].tolist()


def test_lengths_that_are_not_those_of_the_samples_are_refused():
    class Wrong(Spoken):
        def lengths(self, ids, draw):
            return np.ones(len(ids) + 1)

    measure = find_measure(Alignment(), Wrong(29), 0)
    assert measure is not None
    with pytest.raises(UsageError, match=r"13 samples have lengths of shape \(14,\)"):
        measure(np.arange(13), 0)


def test_dealt_steps_have_the_loss_of_the_whole_batch(on_ranks, tmp_path):
    weights, losses = expect()
    found, reported, _ = train(tmp_path, None, Speech(), micro_batch=5)
    assert reported == pytest.approx(losses, rel=1e-5)
    for name, value in weights.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5)
    on_ranks(3, dealt_ranks)


def dealt_ranks(ranks: Ranks) -> None:
    weights, _ = expect()
    with tempfile.TemporaryDirectory() as root:
        found, *_ = train(Path(root), ranks, Speech(), accumulate=2)
    for name, value in weights.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5)
