"""Brings the rows of all ranks to every rank, in one collective, and says how long this rank waited for it.

How many rows each rank has, all ranks know before: from the batch plan, or because they have asked. They travel at one size, that of the
rank with most of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from paceline.engine.ranks import Ranks


class RowGather:
    """The gathering of one step after another."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._wait_ms = 0.0
        self._events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
        if ranks.has_group and ranks.device.type == "cuda":
            self._events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def run(self, rows: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """All rows, rank after rank, of which this one has `rows`, and each has as many as `sizes` says; all have them alike."""
        assert len(rows) == sizes[self._ranks.rank], "the rows are not as many as was said"
        if not self._ranks.has_group:
            return rows
        padded = rows.new_zeros(max(sizes), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in sizes]
        began = time.perf_counter()
        if self._events is not None:
            self._events[0].record()
        self._ranks.finish(self._ranks.gather_parts(padded, parts, None))
        if self._events is not None:
            self._events[1].record()
        self._wait_ms = (time.perf_counter() - began) * 1e3
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def read_wait_ms(self) -> float:
        """Of the last one; on a GPU the host waits until the device has passed it."""
        if self._events is not None:
            self._events[1].synchronize()
            self._wait_ms = self._events[0].elapsed_time(self._events[1])
        return self._wait_ms
