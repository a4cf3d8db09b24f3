"""After the last step the other splits are asked of the best model, or it is told that they were not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from paceline.engine.build import build_trainer
from paceline.engine.checkpoint.reading import read_tensors
from paceline.engine.checkpoint.tensors import MODEL
from paceline.engine.context import Context
from paceline.engine.trainer import Trainer
from paceline.files import read_records
from paceline.telemetry.checkpoints import find_checkpoint, shard_name, step_name
from paceline.telemetry.tables import read_table
from tests.engine.conftest import Regression

SECTIONS = {
    "checkpoint": {},
    "train": {"max_steps": 8, "global_batch": 13, "optimizer": {"lr": 0.05}},
    "telemetry": {"tensorboard": False},
    "evaluate": {"every_steps": 2, "every_epochs": None, "block": 3},
}


class Drifting(Regression):
    """Best after four steps: from then on the deciding split finds it worse, whatever it is."""

    splits = ("validation", "test")

    def __init__(self) -> None:
        super().__init__()
        self._asked = 0

    def metrics(self, split, outputs):
        found = super().metrics(split, outputs)
        self._asked += split == "validation"
        return {"error": abs(self._asked - 2) + 0.5} if split == "validation" else found


@pytest.fixture
def train(make_context: Callable[..., Context]) -> Callable[..., tuple[Context, Trainer]]:
    def run(**sections) -> tuple[Context, Trainer]:
        context = make_context(SECTIONS | sections)
        trainer = build_trainer(context, Drifting())
        trainer.run()
        trainer.close()
        return context, trainer

    return run


def rows_of(context: Context, split: str) -> list[tuple[int, float]]:
    return [(row["step"], row["error"]) for row in read_table(context.layout.validation) if row["split"] == split]


def warnings(context: Context) -> list[dict]:
    return [event for event in read_records(context.layout.events) if event["kind"] == "warning"]


def score(weights: dict[str, torch.Tensor]) -> float:
    workload = Drifting()
    model = workload.build_model(None)
    model.load_state_dict(weights)
    batch = workload.evaluation_set("test").fetch(range(7), None)
    with torch.no_grad():
        return float(workload.predict(model, batch)["error"].double().square().mean())


def test_the_other_splits_are_asked_of_the_best_model(train) -> None:
    context, trainer = train()
    assert [step for step, _ in rows_of(context, "validation")] == [2, 4, 6, 8]
    (row,) = rows_of(context, "test")
    best, last = (read_tensors(find_checkpoint(context.layout.root, word), MODEL) for word in ("best", "final"))
    assert row == (4, pytest.approx(score(best), rel=1e-6))
    assert abs(score(last) - score(best)) > 1e-4, "the last model would have given another figure"
    assert trainer.state.step == 8
    assert not warnings(context)


def test_without_checkpoints_it_is_told_that_the_last_one_was_asked(train) -> None:
    context, _ = train(checkpoint={"enabled": False})
    assert [step for step, _ in rows_of(context, "test")] == [8]
    (warning,) = warnings(context)
    assert "not the best one of step 4" in warning["what"]
    assert warning["why"] == "checkpoint.enabled=false keeps none"


def test_a_damaged_best_one_does_not_end_a_trained_run(train, monkeypatch: pytest.MonkeyPatch) -> None:
    finish = "paceline.engine.checkpoint.saver.Saver.finish"
    from paceline.engine.checkpoint.saver import Saver

    original = Saver.finish

    def damage(self: Saver, state, *, is_final: bool) -> None:
        original(self, state, is_final=is_final)
        shard = self._layout.checkpoints / step_name(4) / shard_name(0)
        shard.write_bytes(shard.read_bytes()[:-1])

    monkeypatch.setattr(finish, damage)
    context, _ = train()
    assert [step for step, _ in rows_of(context, "test")] == [8]
    (warning,) = warnings(context)
    assert "damaged" in warning["why"]
