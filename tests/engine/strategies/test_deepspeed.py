"""DeepSpeed's stages 0 to 3: the training of DDP, with state that goes from one to the other; and what is said where it is not installed."""

from __future__ import annotations

import importlib
import importlib.util

import pytest
import torch

from paceline.config.sections import Parallel
from paceline.engine.checkpoint.tensors import collect_tensors, load_moments, load_weights, model_tensors
from paceline.engine.deepspeed import Called, load_deepspeed
from paceline.engine.precision import Precision
from paceline.engine.ranks import Ranks
from paceline.engine.strategies.ddp import DdpStrategy
from paceline.engine.strategies.deepspeed import DeepSpeedStrategy, find_kind
from paceline.errors import CheckpointError, ConfigError
from paceline.telemetry.events import QuietLog
from tests.engine.strategies.conftest import Net, Training, assert_same_on_all_ranks

needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None,
    reason="deepspeed is not installed (pip install 'paceline[deepspeed]')",
)


def test_a_missing_package_is_an_error_that_says_how_to_get_it(monkeypatch) -> None:
    def fail(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", fail)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    with pytest.raises(ConfigError, match="needs the package deepspeed") as caught:
        load_deepspeed(Ranks(0, 2, torch.device("cpu"), "gloo", ""), QuietLog())
    assert "pip install 'paceline[deepspeed]'" in caught.value.problems[0].do


def test_autocast_gets_through_to_the_model() -> None:
    """DeepSpeed's engine switches off what it has not been configured with."""
    called, x = Called(torch.nn.Linear(2, 2), "cpu"), torch.ones(1, 2)
    with torch.autocast("cpu", torch.bfloat16):
        called.remember_autocast()
        with torch.autocast("cpu", enabled=False):
            assert called(x).dtype == torch.bfloat16
    called.remember_autocast()
    assert called(x).dtype == torch.float32


def test_one_count_of_steps_for_many_parameters() -> None:
    """A checkpoint in which they differ is refused, by name."""
    strategy = DeepSpeedStrategy(Net(), Ranks(0, 2, torch.device("cpu"), "gloo", ""), Parallel(zero_stage=1))
    piece = torch.zeros(10)
    strategy._pieces = dict.fromkeys(strategy.trainable, piece)
    optimizer = torch.optim.AdamW([piece])
    optimizer.state[piece] = {"step": torch.zeros(())}
    assert strategy.place_moment(optimizer, "step", "gain", torch.tensor(3.0))
    assert strategy.place_moment(optimizer, "step", "embedding.weight", torch.tensor(3.0))
    with pytest.raises(CheckpointError, match=r"blocks.0.linear.bias has made 4, others 3"):
        strategy.place_moment(optimizer, "step", "blocks.0.linear.bias", torch.tensor(4.0))


@needs_deepspeed
@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_three_ranks(zygote, tmp_path, stage) -> None:
    zygote.bring("deepspeed", DS_ACCELERATOR="cpu")
    zygote.call(3, f"{__name__}:three_ranks_at_stage_{stage}", tmp_path, timeout_s=100)


def three_ranks_at_stage_0(ranks: Ranks) -> None:
    three_ranks(ranks, 0)


def three_ranks_at_stage_1(ranks: Ranks) -> None:
    three_ranks(ranks, 1)


def three_ranks_at_stage_2(ranks: Ranks) -> None:
    three_ranks(ranks, 2)


def three_ranks_at_stage_3(ranks: Ranks) -> None:
    three_ranks(ranks, 3)


def three_ranks(ranks: Ranks, stage: int) -> None:
    """Also parameters with fewer elements than ranks, tied ones, frozen ones, and buffers that a forward changes."""
    ddp, deep = Training(DdpStrategy, ranks, 0), Training(find_kind(stage), ranks, stage)
    for training in (ddp, deep):
        training.train(range(3), accumulate=2)
        training.train(range(3, 4), skip=1.0)  # left out, on all ranks alike
        with training.strategy.whole() as model, training.strategy.whole() as again, torch.no_grad():
            assert again is model, "gathered once"
            assert type(model) is Net
            model.eval()
            for _ in range(ranks.rank):  # each rank as often as it likes
                model.blocks[1](model.embedding(torch.arange(11)))
            model.train()
        training.train(range(4, 6))
    assert deep.norms == pytest.approx(ddp.norms, rel=1e-5)
    weights = deep.weights()
    for name, value in ddp.weights().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-5, msg=name)
    assert_same_on_all_ranks(ranks, {name: v for name, v in weights.items() if "running" not in name})
    check_state(ranks, ddp, deep, stage)
    check_shares(ranks, deep, stage)


def check_state(ranks: Ranks, ddp: Training, deep: Training, stage: int) -> None:
    """What is assembled is whole, and goes into another model, DeepSpeed's or not."""
    tensors = collect_tensors(deep.strategy, deep.optimizer, Precision())
    expected = collect_tensors(ddp.strategy, ddp.optimizer, Precision())
    assert set(tensors) == set(expected)
    names = list(tensors)
    shards = [names[:7], names[7:]]  # and none on the last rank
    assembled = deep.strategy.assemble(tensors, shards)
    mine = shards[ranks.rank] if ranks.rank < 2 else []
    found = dict(zip(mine, assembled, strict=True)) if assembled is not None else tensors
    for name, whole in found.items():
        assert (whole.shape, whole.dtype) == (expected[name].shape, expected[name].dtype), name
        if "running" not in name:
            torch.testing.assert_close(whole.detach(), expected[name].detach(), rtol=1e-3, atol=1e-4, msg=name)
    again = Training(find_kind(stage), ranks, stage)
    weights = {name: value.detach().clone() for name, value in model_tensors(ddp.strategy.model).items()}
    load_weights(again.strategy.model, weights, "here", strategy=again.strategy)
    moments = {name: value.clone() for name, value in ddp.strategy.moments(ddp.optimizer).items()}
    load_moments(again.strategy, again.optimizer, moments.items(), "here")
    loaded = again.weights()
    assert all(torch.equal(loaded[name], value) for name, value in weights.items() if "running" not in name)
    for training in (ddp, again):
        training.train(range(6, 8))
    assert again.norms == pytest.approx(ddp.norms[-2:], rel=1e-4)
    with pytest.raises(CheckpointError, match="not exp_avg, exp_avg_sq, step"):
        load_moments(again.strategy, again.optimizer, [("momentum_buffer.gain", torch.zeros(1))], "here")


def check_shares(ranks: Ranks, deep: Training, stage: int) -> None:
    """About a third of the moments, and at stage 3 of the weights."""
    num_elements = sum(p.numel() for name, p in Net().named_parameters() if name != "frozen")
    moments = sum(state["exp_avg"].numel() for state in deep.optimizer.state.values())
    assert moments == num_elements if stage == 0 else moments < 0.5 * num_elements
    if stage == 3:
        assert sum(piece.numel() for piece in set(deep.strategy._pieces.values())) == moments
