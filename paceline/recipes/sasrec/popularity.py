"""The baseline every model must beat: rank all items by how often they occur in training events."""

from __future__ import annotations

import numpy as np

from paceline.recipes.sasrec.interactions import Ints
from paceline.recipes.sasrec.split import Split


def rank_by_popularity(split: Split, name: str, mask_seen: bool) -> Ints:
    """The rank of each held-out answer, by the rules of `metrics.rank_answers`, without a score per user and item."""
    interactions = split.interactions
    counts = split.train_counts()
    answers = split.answers(name)
    items = interactions.items[answers] - 1
    ranks = len(counts) - np.searchsorted(np.sort(counts), counts[items], side="left") - 1
    if not mask_seen:
        return ranks.astype(np.int64)
    firsts = interactions.offsets[split.held_out]
    for row, (first, answer) in enumerate(zip(firsts, answers, strict=True)):
        seen = np.unique(interactions.items[first:answer]) - 1
        if items[row] in seen:
            ranks[row] = len(counts)
        else:
            ranks[row] -= int((counts[seen] >= counts[items[row]]).sum())
    return ranks.astype(np.int64)
