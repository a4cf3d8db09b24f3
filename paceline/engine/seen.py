"""What training forwards computed, kept to be looked at between steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_POSITIONS = 1024


class Seen:
    """The first positions of the last training forward, at a place of their own.

    A CUDA graph leaves what it computes in memory that other graphs use as well. This is allocated once, before any is recorded, and
    written by whichever was replayed last; where that had fewer positions, the rest is of one before it.
    """

    def __init__(self, empty: float) -> None:
        self._empty = empty
        """what stands where nothing has been written yet"""
        self._values: Tensor | None = None

    def make_room(self, of_one: Sequence[int], device: torch.device) -> None:
        """For positions of this shape, in fp32."""
        if self._values is None:
            self._values = torch.full((_POSITIONS, *of_one), self._empty, device=device, dtype=torch.float32)

    def keep(self, values: Tensor) -> None:
        if self._values is None:
            self._values = values.detach().new_full((_POSITIONS, *values.shape[1:]), self._empty)
        count = min(len(values), _POSITIONS)
        self._values[:count].copy_(values[:count].detach())

    def read(self) -> Tensor | None:
        """None: nobody has made room for it, and there was no training forward yet."""
        return self._values
