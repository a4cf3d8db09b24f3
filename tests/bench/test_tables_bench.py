from __future__ import annotations

import pytest
import torch

from paceline.bench.lookups import Lists, Sums
from paceline.bench.tables import measure
from paceline.workload import Draw


def test_low_numbers_come_more_often_and_none_lies_outside() -> None:
    ids = Lists(64, 1_000, 500).fetch(range(64), Draw(0, 0))["ids"]
    assert ids.shape == (64, 500)
    assert ids.min() == 0
    assert 900 < ids.max() < 1_000
    assert (ids < 31).float().mean() == pytest.approx(0.5, abs=0.02), "as 1 / number"
    assert torch.equal(ids[3:5], Lists(64, 1_000, 500).fetch([3, 4], Draw(0, 0))["ids"])


def test_the_table_is_where_it_is_used() -> None:
    model = Sums(50, 4, torch.device("cpu"))
    assert model(torch.zeros(3, 2, dtype=torch.long)).shape == (3,)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_real_run_is_measured() -> None:
    told = measure(rows=20_000, width=32, lookups=1_280, nproc=2, steps=4, optimizer="adamw")
    assert told["dense_bytes"] == 20_000 * 32 * 4
    assert 0 < told["bytes"] <= 640 * (4 + 32 * 4), "no more than a rank has looked up"
    assert told["touched_rows"] <= 1_280
    assert told["ratio"] == pytest.approx(told["dense_bytes"] / told["bytes"], rel=0.01)
