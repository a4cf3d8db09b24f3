"""The baseline every model must beat: items by how often they were clicked in training, whoever asks."""

from __future__ import annotations

import numpy as np

from paceline.recipes.tenrec.table import Ints


def rank_items(clicks: Ints) -> Ints:
    """(items + 1,) how many other items were clicked at least as often as each; the first entry is none's."""
    counts = np.sort(clicks[1:])
    ranks = len(counts) - np.searchsorted(counts, clicks, side="left") - 1
    return ranks.astype(np.int64)
