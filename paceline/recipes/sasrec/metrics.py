"""Ranks of the answers over the full catalogue, and HR@k and NDCG@k from them.

A rank is the number of other items that are not strictly below the answer: 0 is best. Ties and NaN count against the answer, so a
constant or broken model scores 0, never 1.

    ranks [0, 4, 12]   hr_10 0.6667   ndcg_10 (1/log2(2) + 1/log2(6) + 0) / 3 = 0.4623
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from paceline.recipes.sasrec.interactions import Ints


def rank_answers(
    scores_BN: Tensor,
    answers_B: Tensor,
    seen_rows: Tensor | None = None,
    seen_items: Tensor | None = None,
    answer_seen_B: Tensor | None = None,
) -> Tensor:
    """The rank of each row's answer (an item 1 … N); N, which no cut-off reaches, for an answer that is itself left out as seen."""
    num_items = scores_BN.shape[1]
    answer_scores_B1 = scores_BN.gather(1, answers_B[:, None] - 1)
    below_BN = scores_BN < answer_scores_B1
    if seen_rows is not None and seen_items is not None:
        below_BN[seen_rows, seen_items - 1] = True
    ranks_B = num_items - 1 - below_BN.sum(1)
    if answer_seen_B is not None:
        ranks_B = ranks_B.masked_fill(answer_seen_B, num_items)
    return ranks_B


def metric_names(top_k: Sequence[int]) -> list[str]:
    return [f"{name}_{k}" for k in top_k for name in ("hr", "ndcg")]


def compute_metrics(ranks: Ints, num_items: int, top_k: Sequence[int]) -> dict[str, float]:
    """HR@k (share of answers among the first k) and NDCG@k (discounted by the place); NaN without any samples."""
    values = {}
    gains = 1 / np.log2(ranks.astype(np.float64) + 2)
    for k in top_k:
        hits = (ranks < k) & (ranks < num_items)
        values[f"hr_{k}"] = float(hits.mean()) if len(ranks) else float("nan")
        values[f"ndcg_{k}"] = float((gains * hits).mean()) if len(ranks) else float("nan")
    return values
