"""Groups with and without decay, the fused choice, the learning rate per step."""

from __future__ import annotations

import pytest
import torch

from paceline.config.sections import Optimizer, Schedule, Train
from paceline.engine.optimizer import LearningRate, build_optimizer, find_unmatched, split_parameters
from paceline.engine.strategies.base import find_trainable
from paceline.errors import ConfigError
from paceline.files import read_records
from paceline.telemetry.events import EventLog


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(3, 4)
        self.linear = torch.nn.Linear(4, 4)
        self.norm = torch.nn.LayerNorm(4)
        self.frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)


def test_decay_spares_what_it_should_and_frozen_parameters_are_left_out(tmp_path):
    decayed, spared = split_parameters(find_trainable(Small()), ["bias", "norm", "embedding"])
    assert decayed == ["linear.weight"]
    assert spared == ["embedding.weight", "linear.bias", "norm.weight", "norm.bias"]
    events = EventLog(tmp_path / "events.jsonl", "rank 0", 1)
    optimizer = build_optimizer(find_trainable(Small()), Optimizer(weight_decay=0.1), torch.device("cpu"), events)
    assert [(len(group["params"]), group["weight_decay"]) for group in optimizer.param_groups] == [(1, 0.1), (4, 0.0)]
    (choice,) = read_records(tmp_path / "events.jsonl")
    assert (choice["requested"], choice["effective"]) == ("auto", True)
    assert optimizer.defaults["fused"] is True


@pytest.mark.parametrize(
    ("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)]
)
def test_every_name_builds_its_optimizer(name, kind, tmp_path):
    events = EventLog(tmp_path / "events.jsonl", "rank 0", 1)
    optimizer = build_optimizer(find_trainable(Small()), Optimizer(name=name, fused=False), torch.device("cpu"), events)
    assert type(optimizer) is kind
    assert not optimizer.defaults["fused"]


def test_fused_is_refused_where_there_is_none(tmp_path):
    events = EventLog(tmp_path / "events.jsonl", "rank 0", 1)
    with pytest.raises(ConfigError, match="no fused adamw on meta"):
        build_optimizer(find_trainable(Small()), Optimizer(fused=True), torch.device("meta"), events)


def test_the_learning_rate_reaches_every_group():
    train = Train(optimizer=Optimizer(lr=0.5), schedule=Schedule(kind="linear", warmup_steps=2))
    optimizer = torch.optim.SGD(
        [{"params": [torch.nn.Parameter(torch.ones(1))]}, {"params": [torch.nn.Parameter(torch.ones(1))]}], lr=9
    )
    learning_rate = LearningRate(train, horizon=10)
    for step, expected in ((1, 0.25), (2, 0.5), (3, 0.5), (7, 0.25), (11, 0.0)):
        learning_rate.apply(optimizer, step)
        assert {group["lr"] for group in optimizer.param_groups} == {expected}


def test_words_that_match_no_parameter_are_found():
    assert find_unmatched(Small(), ["bias", "nrom", "embedding", "biass"]) == ["nrom", "biass"]
