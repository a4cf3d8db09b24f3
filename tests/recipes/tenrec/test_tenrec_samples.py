"""What samples hold, and that an evaluation has every impression once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.recipes.tenrec.samples import take_rows
from paceline.workload import Draw
from tests.recipes.tenrec.models import build_workload

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("name", ["tenrec", "tenrec-retrieval"])
def test_an_evaluation_has_every_impression_once_as_it_was_recorded(name: str) -> None:
    samples = build_workload(name=name).evaluation_set("test")
    side = samples.side
    parts = [
        samples.fetch(range(first, min(first + 50, len(samples))), Draw(0, 0)) for first in range(0, len(samples), 50)
    ]
    shown = [take_rows(part) for part in parts]
    is_there = torch.cat([part["actions"] for part in shown]) >= 0
    assert int(is_there.sum()) == len(side.rows)
    for field, expected in {
        "actions": side.table.actions[side.rows],
        "history": side.table.history[side.rows],
        "candidates": side.table.item[side.rows][:, None],
        "categories": side.table.items.category[side.table.item[side.rows]][:, None],
        "ages": side.table.users.age[side.table.user[side.rows]],
    }.items():
        found = torch.cat([part[field] for part in shown])[is_there]
        assert np.array_equal(found.numpy(), expected), field


def test_evaluations_do_not_depend_on_the_seed_of_a_run() -> None:
    samples = build_workload().evaluation_set("validation")
    first, second = (samples.fetch(range(5), Draw(seed, 0))["candidates"] for seed in (0, 1))
    assert torch.equal(first, second)


def test_negatives_of_a_step_are_the_same_in_all_its_parts() -> None:
    samples = build_workload("loss.negatives=sampled", "loss.num_sampled=9", name="tenrec-retrieval").train_set()
    step = tuple(range(30, 60))
    one, other = (samples.fetch(ids, Draw(0, 2, step)) for ids in (step[:4], step[4:6]))
    assert torch.equal(one["items"][4:], other["items"][2:])
    assert one["items"].shape == one["log_q"].shape == one["categories"].shape == (13,)
    assert not torch.equal(one["items"][4:], samples.fetch(step[:4], Draw(0, 2, step[::-1]))["items"][4:])
