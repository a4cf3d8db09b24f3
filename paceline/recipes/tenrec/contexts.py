"""What both models look at beside an item: a row's user and history, as tensors, gathered from the table's columns at once.

look_up_contexts(table, rows) -> {"history": (B, 10), "history_categories": (B, 10), "genders": (B,), "ages": (B,)}
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paceline.recipes.tenrec.table import Table

Tensors = dict[str, Tensor]


def look_up_contexts(table: Table, rows: npt.NDArray[np.integer]) -> Tensors:
    history = table.history[rows]
    users = table.user[rows]
    return {
        "history": to_tensor(history),
        "history_categories": look_up_categories(table, history),
        "genders": to_tensor(table.users.gender[users]),
        "ages": to_tensor(table.users.age[users]),
    }


def look_up_categories(table: Table, items: npt.NDArray[np.integer]) -> Tensor:
    return to_tensor(table.items.category[items])


def to_tensor(numbers: npt.NDArray[np.integer]) -> Tensor:
    """In int64, which every lookup takes."""
    return torch.from_numpy(numbers.astype(np.int64))
