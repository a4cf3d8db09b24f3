"""Both stages together: the towers find items of the whole catalogue, the ranker orders them; beside retrieval alone and popularity.

    stages.predict(model, batch)    per held-out row: where its item lands in each of the three orders
    stages.measure(outputs)         {"two_stage_ndcg_10": …, "retrieval_ndcg_10": …, "popularity_ndcg_10": …, "retrieval_hr_100": …}

The answer is the item that came of a held-out row, found from what its user had before. It counts for one over how often it was shown in
training: what everybody is shown is clicked often without being liked more, and a list that repeats what was shown would win. Where the
rows are generated the truth is known, too: `…_planted_10` is the NDCG of a list whose gains are the planted chances of a click.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.recipes.tenrec.contexts import Tensors, look_up_categories
from paceline.recipes.tenrec.opening import Opened
from paceline.recipes.tenrec.ranker import CLICK_HEAD, Ranker
from paceline.recipes.tenrec.retriever import Retriever
from paceline.recipes.tenrec.table import Floats, Ints

STAGES = ("two_stage", "retrieval", "popularity")
_MOST_PLANTED = 20_000
"""items of a catalogue up to which the truth about all of them is asked for"""


class TwoStage:
    def __init__(self, opened: Opened, retriever: Retriever, retrieved: int, k: int) -> None:
        exposures, clicks = opened.split.item_counts()
        self._table = opened.table
        self._retriever = retriever
        self._retrieved, self._k = min(retrieved, opened.table.num_items), k
        self._weights = 1 / np.maximum(exposures, 1)
        self._most_clicked = torch.from_numpy(1 + np.argsort(-clicks[1:], kind="stable")[:k])
        self._truth = opened.truth if opened.table.num_items <= _MOST_PLANTED else None

    @property
    def metric_names(self) -> Sequence[str]:
        planted = [f"{stage}_planted_{self._k}" for stage in STAGES] if self._truth is not None else []
        return [*(f"{stage}_ndcg_{self._k}" for stage in STAGES), f"retrieval_hr_{self._retrieved}", *planted]

    def predict(self, model: Ranker, batch: Tensors) -> Tensors:
        answers_B = batch["answers"]
        found_BK = self._retriever.find(batch, self._retrieved)
        categories = look_up_categories(self._table, found_BK.cpu().numpy()).to(found_BK.device)
        scores_BK = model({**batch, "candidates": found_BK, "categories": categories})[..., CLICK_HEAD]
        # Of equal scores the one that was found first: the order is the same wherever it is made.
        ordered_BK = found_BK.gather(1, scores_BK.sort(dim=1, descending=True, stable=True).indices)
        orders = dict(zip(STAGES, (ordered_BK, found_BK, self._most_clicked.expand(len(found_BK), -1)), strict=True))
        outputs = {f"{stage}_place": find_places(order, answers_B) for stage, order in orders.items()}
        if self._truth is not None:
            users, planted = batch["users"].cpu().numpy(), {}
            chances_BN = self._ask_truth(users)
            best_B = _discounted(-np.sort(-chances_BN, 1)[:, : self._k])
            for stage, order in orders.items():
                shown = np.take_along_axis(chances_BN, order[:, : self._k].cpu().numpy() - 1, 1)
                planted[f"{stage}_planted"] = torch.from_numpy(_discounted(shown) / best_B)
            outputs |= planted
        return outputs | {"answer": answers_B}

    def _ask_truth(self, users: Ints) -> Floats:
        """(B, items) the planted chance of a click, of every item."""
        assert self._truth is not None
        items = np.arange(1, self._table.num_items + 1)
        pairs = self._truth.probability(np.repeat(users, len(items)), np.tile(items, len(users)))
        return pairs[:, CLICK_HEAD].reshape(len(users), -1)

    def measure(self, outputs: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, float]:
        weights = self._weights[outputs["answer"]]
        found = {}
        for stage in STAGES:
            places = outputs[f"{stage}_place"]
            gains = np.where(places < self._k, 1 / np.log2(places + 2.0), 0.0)
            found[f"{stage}_ndcg_{self._k}"] = float(np.average(gains, weights=weights))
        is_found = outputs["retrieval_place"] < self._retrieved
        found[f"retrieval_hr_{self._retrieved}"] = float(np.average(is_found, weights=weights))
        if self._truth is not None:
            found |= {f"{stage}_planted_{self._k}": float(outputs[f"{stage}_planted"].mean()) for stage in STAGES}
        return found


def find_places(items_BK: Tensor, answers_B: Tensor) -> Tensor:
    """(B,) where each answer stands in its list; far behind it where it does not."""
    is_it_BK = items_BK.to(answers_B.device) == answers_B[:, None]
    return torch.where(is_it_BK.any(1), is_it_BK.int().argmax(1), torch.iinfo(torch.int32).max)


def _discounted(gains_BK: Floats) -> Floats:
    """(B,) summed, each less the further back."""
    total: Floats = gains_BK @ (1 / np.log2(np.arange(gains_BK.shape[1]) + 2.0))
    return total
