"""Requests as tensors: the context of each, as both models take it.

build_contexts(queries, categories) -> {"history": (B, 10), "history_categories": (B, 10), "genders": (B,), "ages": (B,)}
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.recipes.tenrec.columns import HISTORY
from paceline.recipes.tenrec.contexts import Tensors, to_tensor
from paceline.serving.query import Query


def build_contexts(queries: Sequence[Query], categories: NDArray[np.uint16]) -> Tensors:
    """What is not known about a user is 0, as in training."""
    history = np.zeros((len(queries), HISTORY), np.int64)
    for row, query in zip(history, queries, strict=True):
        row[: len(query.history)] = query.history[:HISTORY]
    return {
        "history": to_tensor(history),
        "history_categories": to_tensor(categories.take(history)),
        "genders": to_tensor(np.array([query.attributes.get("gender", 0) for query in queries])),
        "ages": to_tensor(np.array([query.attributes.get("age", 0) for query in queries])),
    }
