"""Sums by number are those of a plain loop, each number once, and the same bits however often they are made."""

from __future__ import annotations

import pytest
import torch

from paceline.engine.row_sums import Size, group_rows, read_sizes, sum_groups


def sum_rows(ids: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    groups = group_rows(ids)
    (size,) = read_sizes([groups])
    return sum_groups(groups, size, rows)


@pytest.mark.parametrize("seed", range(5))
def test_the_sums_of_a_plain_loop(seed):
    generator = torch.Generator().manual_seed(seed)
    count = int(torch.randint(1, 900, (), generator=generator))
    ids = (torch.rand(count, generator=generator) ** 4 * 50).long()  # low numbers come hundreds of times
    rows = torch.randn(count, 3, generator=generator)
    expected: dict[int, torch.Tensor] = {}
    for number, row in zip(ids.tolist(), rows, strict=True):
        expected[number] = expected.get(number, torch.zeros(3, dtype=torch.float64)) + row
    found, sums = sum_rows(ids, rows)
    assert found.tolist() == sorted(expected)
    torch.testing.assert_close(sums.double(), torch.stack([expected[n] for n in sorted(expected)]), rtol=0, atol=1e-5)
    again = sum_rows(ids, rows)
    assert torch.equal(sums, again[1])


def test_long_groups_are_added_in_runs():
    ids = torch.tensor([7] * 200 + [9])
    assert read_sizes([group_rows(ids), group_rows(ids[:3])]) == [Size(2, 5), Size(1, 1)]
    found, sums = sum_rows(ids, torch.ones(201, 1, dtype=torch.bfloat16))
    assert found.tolist() == [7, 9]
    assert sums.flatten().tolist() == [200.0, 1.0], "in fp32: bf16 would stay at 256 and below"
    assert read_sizes([]) == []


def test_what_is_not_a_number_stays_in_its_sum():
    rows = torch.tensor([[1.0], [float("nan")], [3.0]])
    _, sums = sum_rows(torch.tensor([4, 2, 4]), rows)
    assert sums[0].isnan()
    assert float(sums[1]) == 4
