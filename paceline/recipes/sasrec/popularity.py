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
    # Distinct seen items of each user, as row · N + item; those that are not below the answer leave the ranking.
    histories = answers - interactions.offsets[split.held_out]
    rows = np.repeat(np.arange(len(answers)), histories)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(histories) - histories, histories)
    seen = interactions.items[interactions.offsets[split.held_out][rows] + within] - 1
    rows, seen = np.divmod(np.unique(rows * len(counts) + seen), len(counts))
    left_out = counts[seen] >= counts[items[rows]]
    ranks = ranks - np.bincount(rows[left_out], minlength=len(answers))
    ranks[rows[seen == items[rows]]] = len(counts)
    return ranks.astype(np.int64)
