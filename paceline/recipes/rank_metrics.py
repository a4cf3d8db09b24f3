"""HR@k, NDCG@k and MRR@k from the ranks of the answers: 0 is best, and a rank counts the rivals that are not strictly below the answer.

ranks [0, 4, 12]   hr_10 2/3   ndcg_10 (1/log2(2) + 1/log2(6) + 0) / 3 = 0.4623   mrr_10 (1/1 + 1/5 + 0) / 3 = 0.4
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]


def metric_names(top_k: Sequence[int]) -> list[str]:
    return [f"{name}_{k}" for k in top_k for name in ("hr", "ndcg", "mrr")]


def compute_metrics(ranks: Ints, num_candidates: int, top_k: Sequence[int]) -> dict[str, float]:
    """Means over the samples, NaN without any: HR@k is 1 for an answer among the first k, NDCG@k and MRR@k discount its place.

    `num_candidates` counts the answer too; from that rank on an answer was not ranked at all, and misses whatever k is.
    """
    import numpy as np  # only in a worker: the operator's side, which what recipes share belongs to, starts without it

    places = ranks.astype(np.float64) + 1
    values = {}
    for k in top_k:
        hits = (ranks < k) & (ranks < num_candidates)
        for name, gains in (("hr", 1.0), ("ndcg", 1 / np.log2(places + 1)), ("mrr", 1 / places)):
            values[f"{name}_{k}"] = float((gains * hits).mean()) if len(ranks) else float("nan")
    return values


def rank_answers(scores_NC: npt.NDArray[Any], answers_N: Ints) -> Ints:
    """(N,) How many other candidates of a list are not strictly below its answer, whose column is given.

    Ties and NaN count against the answer, so a constant or broken model ranks it last, never first.
    """
    import numpy as np

    answers_N1 = np.take_along_axis(scores_NC, answers_N[:, None], axis=1)
    # The answer is not strictly below itself either, nor is anything where it is NaN.
    return np.asarray((~(scores_NC < answers_N1)).sum(axis=1) - 1, np.int64)
