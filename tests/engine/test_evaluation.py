"""Evaluation: the same digits however it is cut, stopped in the middle when asked, with what there is to say about the model."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from paceline.engine import evaluation
from paceline.engine.build import build_trainer
from paceline.engine.evaluation import Evaluator
from paceline.engine.precision import Precision
from paceline.engine.strategies.base import Strategy
from paceline.files import read_records
from tests.engine.conftest import Regression


def build_evaluator(context, workload, watch=None) -> Evaluator:
    torch.manual_seed(0)
    strategy = Strategy(workload.build_model(None))
    return Evaluator(context.config, context.ranks, workload, strategy, Precision(), watch)


@pytest.mark.parametrize("block", [1, 3, 7, 100])
def test_every_sample_counts_once(make_context, block):
    workload = Regression()
    evaluator = build_evaluator(make_context({"evaluate": {"block": block}}), workload)
    metrics = evaluator.run("validation")
    batch = workload.evaluation_set("validation").fetch(range(7), None)
    with torch.no_grad():
        errors = evaluator._strategy.model(batch["x"]).squeeze(-1) - batch["y"]
    assert metrics["error"] == pytest.approx(float((errors.double() ** 2).mean()), rel=1e-6)


def test_outputs_do_not_keep_what_they_were_cut_from(make_context):
    class Cut(Regression):
        def predict(self, model, batch):
            scores = torch.zeros(len(batch["ids"]), 1000, dtype=torch.float64)
            return {"error": scores[:, 0], "id": batch["ids"]}

    evaluator = build_evaluator(make_context(), Cut())
    outputs = evaluator._score(torch.nn.Identity(), Cut().evaluation_set("validation"), 0, 7)
    assert outputs["error"].untyped_storage().nbytes() == 7 * 8


@pytest.mark.parametrize("num_samples", [1, 3, 4, 8, 9, 23, 24])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_outputs_of_all_ranks_come_in_the_order_of_the_samples(make_context, monkeypatch, num_samples, world_size):
    """The ranks of one evaluation, one after another: the first comes last, and finds what the others sent."""
    block, sent, kept = 4, [], {}
    monkeypatch.setattr(evaluation, "_MOST_SENT", 2 * block * 3 * 4)  # two rounds of scores at a time

    def gather_parts(ranks, tensor, parts, to):
        assert to == 0
        if parts is None:
            sent.append((ranks.rank, tensor))
            return
        for rank, part in enumerate(parts):
            mine = [each for each in sent if each[0] == rank]
            part.copy_(mine[0][1] if rank else tensor)
            sent[:] = [each for each in sent if not mine or each is not mine[0]]

    def shared_names(self, scored):
        return kept.setdefault("names", {name: (tuple(one.shape[1:]), one.dtype) for name, one in scored.items()})

    context = make_context()
    monkeypatch.setattr(type(context.ranks), "gather_parts", gather_parts)
    monkeypatch.setattr(Evaluator, "_shared_names", shared_names)

    def predicted(rank):
        starts = range(rank * block, num_samples, world_size * block)
        ids = [torch.arange(start, min(start + block, num_samples)) for start in starts]
        widths = torch.arange(3)
        outputs = [
            {"scores": (one[:, None] / 7 + widths).bfloat16(), "rank": one.int(), "right": one % 2 > 0} for one in ids
        ]
        return [{name: evaluation._travelling(value) for name, value in each.items()} for each in outputs]

    shared_names(None, predicted(0)[0])
    found = {}
    for rank in reversed(range(world_size)):
        ranks = dataclasses.replace(context.ranks, rank=rank, world_size=world_size)
        evaluator = build_evaluator(dataclasses.replace(context, ranks=ranks), Regression())
        found[rank] = evaluator._gather(predicted(rank), num_samples, block)
    assert not sent
    assert all(found[rank] is None for rank in range(1, world_size))
    ids = np.arange(num_samples)
    expected = (torch.arange(num_samples)[:, None] / 7 + torch.arange(3)).bfloat16().double().numpy()
    assert found[0]["scores"].dtype == np.float64
    assert np.array_equal(found[0]["scores"], expected)
    assert found[0]["rank"].dtype == found[0]["right"].dtype == np.int64
    assert np.array_equal(found[0]["rank"], ids)
    assert np.array_equal(found[0]["right"], ids % 2)


def test_a_stop_in_the_middle_is_noticed(make_context):
    class Watch:
        reason = None

    class Asking(Regression):
        scored = 0

        def predict(self, model, batch):
            self.scored += 1
            Watch.reason = "stop_command" if self.scored == 2 else None
            return super().predict(model, batch)

    workload = Asking()
    evaluator = build_evaluator(make_context({"evaluate": {"block": 1}}), workload, Watch())
    assert evaluator.run("validation") is None
    assert workload.scored == 2
    assert build_evaluator(make_context(), workload).run("validation") is not None, "nobody can ask"


def test_what_the_model_shows_is_told_at_each_evaluation_that_decides(make_context):
    class Shown(Regression):
        splits = ("validation", "test")

        def observe(self, model):
            assert not torch.is_grad_enabled()
            return {"norm": float(model[0].weight.norm())}

    context = make_context(
        {
            "train": {"max_steps": 4, "global_batch": 8},
            "evaluate": {"every_steps": 2, "every_epochs": None},
            "telemetry": {"tensorboard": True},
        }
    )
    trainer = build_trainer(context, Shown())
    told = []
    board = trainer._monitor._board
    add = board.add
    board.add = lambda step, scalars: (told.append((step, dict(scalars))), add(step, scalars))
    trainer.run()
    trainer.close()
    events = [event for event in read_records(context.layout.events) if event["kind"] == "observation"]
    assert [event["step"] for event in events] == [2, 4]
    assert events[0]["values"]["norm"] != events[1]["values"]["norm"]
    shown = [(step, scalars) for step, scalars in told if "model/norm" in scalars]
    assert shown == [(event["step"], {"model/norm": event["values"]["norm"]}) for event in events]
