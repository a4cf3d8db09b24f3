"""Cases of a sweep that train with other numbers of negatives are judged by the same lists."""

from __future__ import annotations

import pytest
import torch

from paceline.recipes.job import load_job
from paceline.workload import Draw

SMALL = ("data.users=60", "data.items=80", "data.rows=2000", "evaluate.negatives=19")


@pytest.mark.parametrize("split", ["validation", "test"])
def test_lists_do_not_depend_on_how_many_negatives_were_trained_with(split: str) -> None:
    found = []
    for negatives in (7, 31):
        job = load_job("tenrec", [*SMALL, f"data.negatives={negatives}"], environ={})
        workload = job.recipe.build(job.config)
        assert workload.train_set().fetch([0], Draw(0, epoch=0))["candidates"].shape == (1, negatives + 1)
        found.append(workload.evaluation_set(split).fetch(range(8), Draw(negatives, epoch=negatives)))
    first, second = found
    assert first["candidates"].shape == (8, 20)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_no_list_has_its_answer_twice() -> None:
    job = load_job("tenrec", [*SMALL, "data.negatives=31"], environ={})
    workload = job.recipe.build(job.config)
    for samples in (workload.train_set(), workload.evaluation_set("test")):
        batch = samples.fetch(range(len(samples)), Draw(0, epoch=0))
        answers = batch["candidates"].gather(1, batch["places"][:, None])
        assert ((batch["candidates"] == answers).sum(1) == 1).all()
