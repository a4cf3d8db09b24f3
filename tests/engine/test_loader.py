"""Batches: fetched on the device where the samples live there, and every draw knows the step's whole batch."""

from __future__ import annotations

import pickle

import pytest
import torch

from paceline.config.arithmetic import plan_batches, plan_length
from paceline.engine.build import build_trainer
from paceline.engine.loader import Loader, plan_requests
from paceline.engine.order import SampleOrder
from tests.engine.conftest import Numbers, Regression


class Placeable(Numbers):
    """Samples that can be kept on the device; remembers what it was asked."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.placed_on: list[str] = []
        self.draws: list = []
        self.is_placed = False

    def on_device(self, device: torch.device) -> Placeable:
        self.placed_on.append(device.type)
        placed = Placeable(len(self))
        placed.draws, placed.is_placed = self.draws, True
        return placed

    def fetch(self, ids, draw):
        assert self.is_placed
        self.draws.append((list(ids), draw))
        return super().fetch(ids, draw)


class Placed(Regression):
    def __init__(self) -> None:
        super().__init__()
        self._train, self._validation = Placeable(40), Placeable(7)


SECTIONS = {
    "train": {"max_steps": 6, "global_batch": 13},
    "data": {"num_workers": 2},
    "telemetry": {"tensorboard": False},
    "evaluate": {"every_steps": 2, "every_epochs": None, "block": 3},
}


def test_samples_on_the_device_are_placed_once_and_fetched_by_the_trainer(make_context):
    workload = Placed()
    context = make_context(SECTIONS)
    trainer = build_trainer(context, workload)
    trainer.run()
    trainer.close()
    assert workload.train_set().placed_on == ["cpu"]
    assert workload.evaluation_set("validation").placed_on == ["cpu"], "once, for three evaluations"
    assert len(workload.train_set().draws) == 6, "a loader process would have kept them to itself"


@pytest.mark.parametrize("world_size", [1, 3])
def test_every_draw_knows_the_whole_batch_of_its_step(make_context, world_size):
    sections = {"train": {"global_batch": 13, "micro_batch": 4}}
    order = SampleOrder(40, 13, 4, seed=0)
    for rank in range(world_size):
        context = make_context(sections, rank=rank, world_size=world_size)
        samples = Placeable(40)
        loader = Loader(context, samples, plan_length(context.config.train, 40))
        items = list(loader.load(1, 8))
        assert len(items) == len(samples.draws)
        for item, (ids, draw) in zip(items, samples.draws, strict=True):
            batch = order.batch(item.epoch, (item.step - 1) % 4).tolist()
            assert (draw.seed, draw.epoch, list(draw.batch)) == (0, item.epoch, batch)
            assert item.batch_samples == len(batch)
            assert ids == (item.ids or batch[:1])
            assert set(ids) <= set(batch)


def test_loader_processes_know_it_too(make_context):
    class Telling(Numbers):
        def fetch(self, ids, draw):
            return {"batch": torch.tensor(draw.batch)}

    context = make_context({"train": {"global_batch": 13}, "data": {"num_workers": 1}})
    loader = Loader(context, Telling(40), plan_length(context.config.train, 40))
    order = SampleOrder(40, 13, 4, seed=0)
    told = [item.batch["batch"].tolist() for item in loader.load(3, 5)]
    assert told == [order.batch(*divmod(index, 4)).tolist() for index in (2, 3, 4)]


def test_a_request_is_small():
    order = SampleOrder(10**6, 4096, 245, seed=0)
    (request,) = plan_requests(order, plan_batches(4096, None, None, 8), 3, 1, 1)
    assert len(request.ids) == 512
    assert len(pickle.dumps(request)) < 8 * 4096 + 1000
