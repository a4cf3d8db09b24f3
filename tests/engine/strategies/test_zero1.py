"""Stage 1: DDP to the last bit, with moments on their owners only."""

from __future__ import annotations

import torch

from paceline.engine.checkpoint.shard import plan_shards
from paceline.engine.checkpoint.tensors import collect_tensors, find_writers, load_moments
from paceline.engine.precision import Precision
from paceline.engine.ranks import Ranks
from paceline.engine.strategies.ddp import DdpStrategy
from paceline.engine.strategies.zero1 import Zero1Strategy, plan_owners
from tests.engine.strategies.conftest import Training, assert_same_on_all_ranks


def test_owners_share_evenly_and_the_same_way_everywhere() -> None:
    sizes = {"a": 10, "b": 40, "c": 20, "d": 20, "e": 10}
    owners = plan_owners(sizes, 2)
    loads = [sum(sizes[name] for name in sizes if owners[name] == rank) for rank in range(2)]
    assert loads == [50, 50]
    assert plan_owners(dict(reversed(sizes.items())), 2) == owners
    assert set(plan_owners({"a": 1, "b": 1}, 5).values()) == {0, 1}, "the first ranks: shards are numbered without gaps"


def test_three_ranks(on_ranks) -> None:
    on_ranks(3, three_ranks)


def three_ranks(ranks: Ranks) -> None:
    ddp, zero = Training(DdpStrategy, ranks, 0), Training(Zero1Strategy, ranks, 1)
    for training in (ddp, zero):
        training.train(range(3), accumulate=2)
        training.train(range(3, 4), skip=1.0)  # left out, on all ranks alike
        training.train(range(4, 6))
    assert zero.norms == ddp.norms
    weights = zero.weights()
    # What is sent next from rank 0: buffers, as in DDP, are its own.
    parameters = {name: value for name, value in weights.items() if "running" not in name and "tracked" not in name}
    assert_same_on_all_ranks(ranks, parameters)
    assert all(torch.equal(value, weights[name]) for name, value in ddp.weights().items())
    assert zero.strategy.model.output.weight is zero.strategy.model.embedding.weight

    # Each rank holds the moments of its own parameters, and knows those of the others by name.
    expected = ddp.strategy.moments(ddp.optimizer)
    found = zero.strategy.moments(zero.optimizer)
    assert set(found) == set(expected)
    mine = [name for name, value in found.items() if not value.is_meta]
    assert {name.partition(".")[2] for name in mine} == set(zero.strategy.trainable)
    assert all(torch.equal(found[name], expected[name]) for name in mine)
    assert all((found[name].shape, found[name].dtype) == (expected[name].shape, expected[name].dtype) for name in found)
    assert ranks.gather_floats([len(mine)]).sum() == len(expected)
    held = ranks.gather_floats([sum(found[name].nbytes for name in mine)])
    assert held.max() < 0.6 * sum(value.nbytes for value in expected.values())

    # Everything is written by a rank that has it.
    tensors = collect_tensors(zero.strategy, zero.optimizer, Precision())
    shards = plan_shards(tensors, 3, find_writers(zero.strategy, tensors))
    assert sorted(name for shard in shards for name in shard) == sorted(tensors)
    assert not any(tensors[name].is_meta for name in shards[ranks.rank])

    # Moments come back to their owners.
    again = Training(Zero1Strategy, ranks, 1)
    load_moments(again.strategy, again.optimizer, expected.items(), "here")
    restored = again.strategy.moments(again.optimizer)
    assert all(torch.equal(restored[name], expected[name]) for name in mine)


def test_more_ranks_than_parameters(on_ranks) -> None:
    on_ranks(3, three_ranks_with_two_parameters)


def three_ranks_with_two_parameters(ranks: Ranks) -> None:
    for options in ({"name": "adamw"}, {"name": "sgd", "momentum": 0.9}, {"name": "adam", "fused": False}):
        ddp, zero = (
            Training(kind, ranks, stage, trained="linear.weight", **options)
            for kind, stage in ((DdpStrategy, 0), (Zero1Strategy, 1))
        )
        for training in (ddp, zero):
            training.train(range(3))
        assert len(zero.strategy.trainable) == (1 if ranks.rank < 2 else 0)
        weights = zero.weights()
        assert all(torch.equal(value, weights[name]) for name, value in ddp.weights().items())
        tensors = collect_tensors(zero.strategy, zero.optimizer, Precision())
        shards = plan_shards(tensors, 3, find_writers(zero.strategy, tensors))
        assert len(shards) == 2, "nothing to write for the last rank"
