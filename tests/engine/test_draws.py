"""Numbers that follow from seed, epoch and sample."""

from __future__ import annotations

import numpy as np
import torch

from paceline.engine.draws import mix, sample_keys, uniform, uniform_rows
from paceline.workload import Draw


def test_keys_do_not_depend_on_who_else_is_asked_for() -> None:
    ids = np.array([7, 3, 5])
    keys = sample_keys(Draw(1, 2), ids)
    assert torch.equal(keys[1:2], sample_keys(Draw(1, 2, batch=(1, 2)), np.array([3])))
    others = [sample_keys(draw, ids) for draw in (Draw(1, 3), Draw(2, 2), Draw(2, 1))]
    assert len(torch.cat([keys, *others]).unique()) == 12


def test_numbers_are_even() -> None:
    numbers = uniform(mix(sample_keys(Draw(0, 0), np.arange(20_000))))
    counts = torch.histc(numbers, 10, 0, 1)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert (counts / 2_000 - 1).abs().max() < 0.1


def test_rows_of_numbers_are_those_of_torch() -> None:
    """And a row's first numbers do not depend on how many there are, nor on the other rows."""
    keys = sample_keys(Draw(3, 1), np.arange(50))
    rows = uniform_rows(keys, 20)
    assert np.array_equal(rows, uniform(mix(keys[:, None] ^ mix(torch.arange(1, 21)))).numpy())
    assert np.array_equal(rows[7:9, :5], uniform_rows(keys[7:9], 5))
