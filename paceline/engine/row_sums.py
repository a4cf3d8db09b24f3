"""Sums of rows that have the same number, in an order that follows from the numbers alone: the same bits in every start, on any device.

    groups = group_rows(ids)
    (size,) = read_sizes([groups])              # of several at once: on a GPU the host waits here
    found, sums = sum_groups(groups, size, rows)    # found: each number once, ascending

Sorted, and added up one after another in runs of 64, and then run after run: no additions in whatever order threads come to them, and no
thread that adds up alone what a number has ten thousand times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn import functional

_RUN = 64


class Groups(NamedTuple):
    """Which rows belong together; all of it on the device."""

    ids: torch.Tensor
    """ascending, each as often as it comes"""
    order: torch.Tensor
    """where each of them was"""
    begins_group: torch.Tensor
    begins_run: torch.Tensor


class Size(NamedTuple):
    """Numbers that the host has to know."""

    groups: int
    runs: int


def group_rows(ids: torch.Tensor) -> Groups:
    """`ids`: (n,) whole numbers, at least one."""
    ids, order = torch.sort(ids, stable=True)
    begins_group = torch.ones_like(ids, dtype=torch.bool)
    torch.ne(ids[1:], ids[:-1], out=begins_group[1:])
    position = torch.arange(len(ids), device=ids.device)
    start = torch.where(begins_group, position, 0).cummax(0).values
    return Groups(ids, order, begins_group, (position - start) % _RUN == 0)


def read_sizes(groups: Sequence[Groups]) -> list[Size]:
    """Of all of them in one wait for the device."""
    if not groups:
        return []
    counts = [torch.stack([each.begins_group.sum(), each.begins_run.sum()]) for each in groups]
    return [Size(*row) for row in torch.stack(counts).tolist()]


def sum_groups(groups: Groups, size: Size, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(each number once, the sum of its rows), in fp32; `rows`: (n, width) as the numbers came."""
    first = _places(groups.begins_group, size.groups)
    runs = _places(groups.begins_run, size.runs)
    sums = functional.embedding_bag(groups.order, rows.float(), runs, mode="sum")
    if size.runs > size.groups:
        # Which run each group begins with.
        begins = groups.begins_run.cumsum(0)[first] - 1
        sums = functional.embedding_bag(torch.arange(size.runs, device=sums.device), sums, begins, mode="sum")
    return groups.ids[first], sums


def _places(marks: torch.Tensor, count: int) -> torch.Tensor:
    """Where the marks are, whose number is known: without asking the device for it."""
    index = torch.where(marks, marks.cumsum(0) - 1, count)  # all others to a place that is cut off
    position = torch.arange(len(marks), device=marks.device)
    return position.new_empty(count + 1).scatter_(0, index, position)[:count]
