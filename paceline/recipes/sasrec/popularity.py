"""The baseline every model must beat: rank items by how often they occur in training events."""

from __future__ import annotations

import numpy as np

from paceline.recipes.sasrec.interactions import PADDING, Ints
from paceline.recipes.sasrec.split import Split


def rank_by_popularity(split: Split, name: str, mask_seen: bool, candidates: Ints | None = None) -> Ints:
    """The rank of each held-out answer, by the rules of `catalogue`: among all items, or among each user's candidates (U, C)."""
    counts = split.train_counts()
    items = split.interactions.items[split.answers(name)] - 1
    if candidates is not None:
        is_rival = (candidates == PADDING) | (counts[candidates - 1] >= counts[items][:, None])
        among: Ints = np.count_nonzero(is_rival, axis=1)
        return among
    # Sorted counts answer this for all users at once, without a score per user and item.
    ranks = len(counts) - np.searchsorted(np.sort(counts), counts[items], side="left") - 1
    return _leave_out_seen(ranks, split, name, counts, items) if mask_seen else ranks.astype(np.int64)


def _leave_out_seen(ranks: Ints, split: Split, name: str, counts: Ints, items: Ints) -> Ints:
    """Ranks without what each user had before the answer; an answer that is itself such an item is never reached."""
    interactions, answers = split.interactions, split.answers(name)
    firsts = interactions.offsets[split.held_out]
    histories = answers - firsts
    rows = np.repeat(np.arange(len(answers)), histories)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(histories) - histories, histories)
    seen = interactions.items[firsts[rows] + within] - 1
    # Distinct seen items of each user, as row · N + item; those that are not below the answer leave the ranking.
    rows, seen = np.divmod(np.unique(rows * len(counts) + seen), len(counts))
    left_out = counts[seen] >= counts[items[rows]]
    ranks = ranks - np.bincount(rows[left_out], minlength=len(answers))
    ranks[rows[seen == items[rows]]] = len(counts)
    return ranks.astype(np.int64)
