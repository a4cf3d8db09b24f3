"""Garbage collection between steps: never inside one, and nothing piles up."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from paceline.engine.build import build_trainer
from paceline.engine.step import TrainStep
from paceline.files import read_records
from tests.engine.conftest import Regression


class Cyclic(Regression):
    """Every micro-step leaves a circle behind that holds a tensor, as a stored exception or a closure does; nobody else can free it."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
        self.most = 0

    def loss(self, model, batch):
        circle: list[object] = [torch.zeros(8)]
        circle.append(circle)
        self.alive.add(circle[0])
        self.most = max(self.most, len(self.alive))
        for _ in range(300):  # and enough small ones for Python to think of it by itself
            small: list[object] = []
            small.append(small)
        return super().loss(model, batch)


@pytest.fixture
def train(make_context, monkeypatch):
    """(workload, generations collected inside steps, between steps, choice)"""

    def run(max_steps: int, gc_every: int, **sections):
        inside, between, is_inside = [], [], False
        step = TrainStep.run

        def mark(self, *arguments):
            nonlocal is_inside
            is_inside = True
            result = step(self, *arguments)
            is_inside = False
            return result

        def note(phase, info):
            if phase == "start":
                (inside if is_inside else between).append(info["generation"])

        monkeypatch.setattr(TrainStep, "run", mark)
        sections = {
            "train": {"max_steps": max_steps, "global_batch": 13, "gc_every": gc_every},
            "telemetry": {"tensorboard": False},
            "evaluate": {"every_epochs": None},
        } | sections
        context, workload = make_context(sections), Cyclic()
        trainer = build_trainer(context, workload)
        gc.collect()
        gc.callbacks.append(note)
        try:
            trainer.run()
        finally:
            gc.callbacks.remove(note)
            trainer.close()
        choice = [e for e in read_records(context.layout.events) if e.get("about") == "train.gc_every"][-1]
        return workload, inside, between, choice

    return run


def test_collections_come_between_steps_and_nothing_piles_up(train):
    workload, inside, between, choice = train(95, 10)
    assert inside == []
    assert between.count(2) == 10, "every ten steps, and in the last evaluation"
    assert workload.most <= 11
    assert choice["effective"] == 10
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_what_the_start_has_left_is_set_aside(train, monkeypatch):
    counts, collect = [], gc.collect
    monkeypatch.setattr(gc, "collect", lambda *generation: counts.append(gc.get_freeze_count()) or collect(*generation))
    train(21, 10)
    before, first_collection, *others = counts[1:]
    assert before == 0
    assert first_collection > 1000
    assert others


def test_evaluations_collect_too(train):
    workload, inside, _, _ = train(40, 1000, evaluate={"every_steps": 8})
    assert inside == []
    assert workload.most <= 9


def test_python_does_it_where_it_is_told_to(train):
    _, inside, _, choice = train(30, 0)
    assert inside, "in the middle of steps"
    assert "Python" in choice["reason"]
    assert gc.get_freeze_count() == 0


def test_whoever_had_it_off_keeps_it_off(train):
    gc.disable()
    try:
        workload, inside, _, _ = train(20, 5)
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert inside == []
    assert workload.most == 20
