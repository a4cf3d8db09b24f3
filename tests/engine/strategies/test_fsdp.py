"""Stages 2 and 3: the training of DDP, with rows of everything on each rank."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from paceline.config.sections import Parallel
from paceline.engine.checkpoint.tensors import collect_tensors, load_moments, load_weights, model_tensors
from paceline.engine.precision import Precision
from paceline.engine.ranks import Ranks
from paceline.engine.strategies.ddp import DdpStrategy
from paceline.engine.strategies.fsdp import FsdpStrategy, find_own_blocks
from paceline.errors import ConfigError
from tests.engine.strategies.conftest import Net, Training, assert_same_on_all_ranks


def test_blocks_are_what_lists_hold() -> None:
    model = Net()
    assert find_own_blocks(model) == list(model.blocks)
    nested = nn.ModuleList([nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]), nn.Linear(2, 2)])
    assert find_own_blocks(nn.ModuleDict({"a": nested})) == [*nested[0], nested[1]]
    assert find_own_blocks(nn.Sequential(nn.Linear(2, 2))) == []
    outer = nn.ModuleList([nn.Sequential(nn.ModuleList([nn.Linear(2, 2)]))])
    assert find_own_blocks(nn.ModuleDict({"a": outer})) == [outer[0]], "the outermost"
    assert find_own_blocks(nn.ModuleDict({"a": nn.ModuleList([nn.ReLU()])})) == [], "nothing to shard"


def test_blocks_that_share_weights_stay_together() -> None:
    model = Net()
    model.blocks[0].linear.weight = model.blocks[1].linear.weight
    assert find_own_blocks(model) == []
    model = Net()
    model.head = nn.Linear(6, 6)
    model.head.weight = model.blocks[1].linear.weight
    assert find_own_blocks(model) == [model.blocks[0]]


def test_a_parameter_without_rows_is_refused() -> None:
    model = Net()
    model.scale = nn.Parameter(torch.ones(()))
    with pytest.raises(ConfigError, match="zero_stage=3 shards parameters by rows, and scale has no rows") as caught:
        FsdpStrategy(model, Ranks(0, 2, torch.device("cpu"), "gloo", ""), Parallel(zero_stage=3))
    assert "parallel.zero_stage=1" in caught.value.problems[0].do


def test_three_ranks_at_stage_2(on_ranks) -> None:
    on_ranks(3, three_ranks_at_stage_2)


def test_three_ranks_at_stage_3(on_ranks) -> None:
    on_ranks(3, three_ranks_at_stage_3)


def three_ranks_at_stage_2(ranks: Ranks) -> None:
    three_ranks(ranks, 2)


def three_ranks_at_stage_3(ranks: Ranks) -> None:
    three_ranks(ranks, 3)


def three_ranks(ranks: Ranks, stage: int) -> None:
    ddp, fsdp = Training(DdpStrategy, ranks, 0), Training(FsdpStrategy, ranks, stage)
    ids = torch.arange(11)
    first, second = fsdp.strategy.model.blocks
    is_let_go = set()
    second.linear.register_forward_pre_hook(lambda *_: is_let_go.add(isinstance(first.linear.weight, DTensor)))
    for training in (ddp, fsdp):
        training.train(range(3), accumulate=2)
        training.train(range(3, 4), skip=1.0)  # left out, on all ranks alike
        with training.strategy.whole() as model, training.strategy.whole() as again, torch.no_grad():
            assert again is model, "gathered once"
            model.eval()
            # Each rank as often as it likes, and not through `forward` alone: nobody may wait for the others.
            for _ in range(ranks.rank):
                model(ids)
                model.blocks[1](model.embedding(ids))
            model.train()
        training.train(range(4, 6))
    assert is_let_go == {stage == 3}, "the weights of a block, once the next one is at work"
    assert fsdp.norms == pytest.approx(ddp.norms, rel=1e-5)
    check_weights(ranks, ddp, fsdp)
    check_rows(ranks, fsdp)
    check_plain(fsdp, ids)
    check_state(ranks, ddp, fsdp, stage)


def check_weights(ranks: Ranks, ddp: Training, fsdp: Training) -> None:
    weights = fsdp.weights()
    for name, value in ddp.weights().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-5, msg=name)
    assert_same_on_all_ranks(ranks, {name: v for name, v in weights.items() if "running" not in name})
    # Each rank's last forward was its own; the next one begins with rank 0's buffers, as under DDP.
    fsdp.strategy._send_buffers()
    assert_same_on_all_ranks(ranks, dict(fsdp.strategy.model.named_buffers()))


def check_rows(ranks: Ranks, fsdp: Training) -> None:
    """A third of everything, and what the optimizer updates is where the weights are."""
    model = fsdp.strategy.model
    for name, rows in fsdp.strategy.trainable.items():
        sharded = model.get_parameter(name)
        assert isinstance(sharded, DTensor)
        assert rows.data_ptr() == sharded.to_local().data_ptr()
        assert len(rows) == max(0, min(-(-len(sharded) // 3), len(sharded) - ranks.rank * -(-len(sharded) // 3)))
        assert fsdp.optimizer.state[rows]["exp_avg"].shape == rows.shape
    assert len(fsdp.strategy.trainable["gain"]) == (1 if ranks.rank == 0 else 0)
    assert model.output.weight is model.embedding.weight


def check_plain(fsdp: Training, ids: torch.Tensor) -> None:
    with fsdp.strategy.whole() as model:
        assert type(model) is Net
        assert not any(isinstance(p, DTensor) for p in model.parameters())
        assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
        assert model.output.weight is model.embedding.weight
        assert set(model.state_dict()) == set(Net().state_dict())
        assert model.eval()(ids).shape == (11, 11)


def check_state(ranks: Ranks, ddp: Training, fsdp: Training, stage: int) -> None:
    """What is assembled is whole, and goes into another model, sharded or not."""
    tensors = collect_tensors(fsdp.strategy, fsdp.optimizer, Precision())
    expected = collect_tensors(ddp.strategy, ddp.optimizer, Precision())
    assert set(tensors) == set(expected)
    names = list(tensors)
    shards = [names[:7], names[7:]]  # and none on the last rank
    assembled = list(fsdp.strategy.assemble(tensors, shards))
    mine = shards[ranks.rank] if ranks.rank < 2 else []
    assert len(assembled) == len(mine)
    for name, whole in zip(mine, assembled, strict=True):
        assert (whole.shape, whole.dtype) == (expected[name].shape, expected[name].dtype), name
        if "running" not in name:
            torch.testing.assert_close(whole, expected[name].detach(), rtol=1e-3, atol=1e-4, msg=name)
    again = Training(FsdpStrategy, ranks, stage)
    weights = {name: value.detach().clone() for name, value in model_tensors(ddp.strategy.model).items()}
    load_weights(again.strategy.model, weights, "here", strategy=again.strategy)
    moments = {name: value.clone() for name, value in ddp.strategy.moments(ddp.optimizer).items()}
    load_moments(again.strategy, again.optimizer, moments.items(), "here")
    found = again.weights()
    assert all(torch.equal(found[name], value) for name, value in weights.items() if "running" not in name)
    for training in (ddp, again):
        training.train(range(6, 8))
    assert again.norms == pytest.approx(ddp.norms[-2:], rel=1e-4)
