"""How well speech finds its text and text its speech, among all pairs of a split: recall and median rank, both ways.

    measure(speech_ND, text_ND, keys_N) -> {"recall_1": …, "s2t_recall_1": …, …, "t2s_median_rank": …}

A rank counts those that score higher than the right one, and those that score the same: a model that finds all alike finds nothing. Who
has the same words as the right one is right as well, and is not counted.

Shapes: N pairs, D width, K rows in a block.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.recipes.csa.crops import Ints

Vectors = np.ndarray[Any, Any]
CUTS = (1, 5, 10)
_BLOCK = 1024
_ONE_WAY = (*(f"recall_{cut}" for cut in CUTS), "median_rank")
METRICS = ("recall_1", *(f"{way}_{name}" for way in ("s2t", "t2s") for name in _ONE_WAY))
"""recall_1 is the mean of both ways"""


def measure(speech_ND: Vectors, text_ND: Vectors, keys_N: Ints) -> dict[str, float]:
    """From the embeddings of all pairs, in the order of their ids."""
    ranks = {"s2t": rank_all(speech_ND, text_ND, keys_N), "t2s": rank_all(text_ND, speech_ND, keys_N)}
    found: dict[str, float] = {}
    for way, ranks_N in ranks.items():
        found |= {f"{way}_recall_{cut}": float((ranks_N <= cut).mean()) for cut in CUTS}
        found[f"{way}_median_rank"] = float(np.median(ranks_N))
    return {"recall_1": (found["s2t_recall_1"] + found["t2s_recall_1"]) / 2} | found


def rank_all(asked_ND: Vectors, answers_ND: Vectors, keys_N: Ints) -> Ints:
    """(N,) from 1: how far down the right answer stands."""
    ranks = []
    for start in range(0, len(asked_ND), _BLOCK):
        block = slice(start, start + _BLOCK)
        scores_KN = asked_ND[block] @ answers_ND.T
        right_K1 = np.take_along_axis(scores_KN, np.arange(len(asked_ND))[block, None], axis=1)
        is_rival_KN = keys_N[block, None] != keys_N[None]
        ranks.append(1 + ((scores_KN >= right_K1) & is_rival_KN).sum(1))
    return np.concatenate(ranks)


def chance(num_pairs: int) -> dict[str, float]:
    """What drawing the answers would reach, with no two texts alike."""
    one_way = {f"recall_{cut}": min(1.0, cut / num_pairs) for cut in CUTS} | {"median_rank": (num_pairs + 1) / 2}
    return {name: one_way[name.removeprefix("s2t_").removeprefix("t2s_")] for name in METRICS}
