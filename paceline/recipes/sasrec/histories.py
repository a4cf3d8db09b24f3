"""All users' events as flat tensors on one device; rows of a batch are cut out of them, many at a time.

items [4, 1, 4, 2, 3]   cut at [0, 3] with lengths [3, 2], rows of 4   ->   [[4, 1, 4, 0], [2, 3, 0, 0]]
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from paceline.recipes.sasrec.interactions import PADDING
from paceline.recipes.sasrec.pace import measure_pace
from paceline.recipes.sasrec.split import Split


@dataclass(frozen=True)
class Histories:
    """The events of all users, one user after the other."""

    items_E: Tensor
    elapsed_E: Tensor | None
    """seconds since the user's first event (float64); None: the model does not look at time"""
    scale_U: Tensor | None
    """seconds per unit of each user's pace"""
    _placed: dict[torch.device, Histories] = field(default_factory=dict, repr=False, compare=False)

    @property
    def device(self) -> torch.device:
        return self.items_E.device

    def to(self, device: torch.device) -> Histories:
        """These histories there; sent once, however many sets of samples are cut out of them."""
        if device not in self._placed:
            parts = (self.items_E, self.elapsed_E, self.scale_U)
            items_E, elapsed_E, scale_U = (None if part is None else part.to(device) for part in parts)
            assert items_E is not None
            self._placed[device] = Histories(items_E, elapsed_E, scale_U)
        return self._placed[device]

    def cut_items(self, firsts_B: Tensor, lengths_B: Tensor, row_length: int) -> Tensor:
        """(B, row_length) items from each first event on, PADDING after the end."""
        places_BL, is_real_BL = self._places(firsts_B, lengths_B, row_length)
        return torch.where(is_real_BL, self.items_E[places_BL], PADDING)

    def cut(self, firsts_B: Tensor, lengths_B: Tensor, users_B: Tensor, row_length: int) -> dict[str, Tensor]:
        """What a model looks at, from each first event on: `items`, and where it looks at time `elapsed` and `scale`."""
        places_BL, is_real_BL = self._places(firsts_B, lengths_B, row_length)
        rows = {"items": torch.where(is_real_BL, self.items_E[places_BL], PADDING)}
        if self.elapsed_E is not None and self.scale_U is not None:
            rows["elapsed"] = torch.where(is_real_BL, self.elapsed_E[places_BL], 0.0)
            rows["scale"] = self.scale_U[users_B]
        return rows

    def _places(self, firsts_B: Tensor, lengths_B: Tensor, row_length: int) -> tuple[Tensor, Tensor]:
        columns_L = torch.arange(row_length, device=self.device)
        is_real_BL = columns_L < lengths_B[:, None]
        # What lies behind a row's end is read, never used; only the very last rows could reach behind all events.
        return (firsts_B[:, None] + columns_L).clamp_(max=len(self.items_E) - 1), is_real_BL


def place_histories(split: Split, with_time: bool) -> Histories:
    """The events of a split, on the host."""
    interactions = split.interactions
    items_E = torch.from_numpy(interactions.items)
    if not with_time:
        return Histories(items_E, None, None)
    assert interactions.times is not None, "the workload has checked that there is time"
    begins = np.repeat(interactions.times[interactions.offsets[:-1]], interactions.lengths)
    elapsed_E = torch.from_numpy(interactions.times - begins)
    return Histories(items_E, elapsed_E, torch.from_numpy(measure_pace(split)))
