"""The sasrec recipe as the engine sees it: data, model, loss, metrics of one configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from paceline.errors import DataError
from paceline.recipes.sasrec.config import Data, SasrecConfig
from paceline.recipes.sasrec.generate import generate_interactions
from paceline.recipes.sasrec.interactions import Interactions, drop_short_users
from paceline.recipes.sasrec.metrics import compute_metrics, metric_names, rank_answers
from paceline.recipes.sasrec.model import Sasrec
from paceline.recipes.sasrec.popularity import rank_by_popularity
from paceline.recipes.sasrec.readers import read_interactions
from paceline.recipes.sasrec.samples import EvaluationSet, Tensors, TrainSet
from paceline.recipes.sasrec.split import SPLITS, Split, split_last
from paceline.workload import Objective, Setting


class SasrecWorkload:
    """Implements `paceline.workload.Workload`."""

    unit = "items"
    splits: Sequence[str] = SPLITS

    def __init__(self, config: SasrecConfig) -> None:
        self._config = config
        self._split = load_split(config.data)
        self._num_items = self._split.interactions.num_items
        num_negatives = (config.loss.num_negatives or 1) if config.loss.kind == "bce" else 0
        self._train = TrainSet(self._split, config.data.max_length, num_negatives)
        self.metric_names: Sequence[str] = metric_names(config.evaluate.top_k)
        self.objective = Objective(f"ndcg_{config.evaluate.top_k[0]}", "max")

    def build_model(self, setting: Setting) -> torch.nn.Module:
        return Sasrec(self._num_items, self._config.data.max_length, self._config.model, setting.attention)

    def train_set(self) -> TrainSet:
        return self._train

    def evaluation_set(self, split: str) -> EvaluationSet:
        return EvaluationSet(self._split, split, self._config.data.max_length, self._config.evaluate.mask_seen)

    def loss(self, model: torch.nn.Module, batch: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        """Summed over all target positions; each weighs 1."""
        targets = batch["targets"]
        if self._config.loss.kind == "ce":
            scores = model(batch["items"], batch["positions"])
            total = F.cross_entropy(scores, targets - 1, reduction="sum")
        else:
            candidates = torch.cat((targets[:, None], batch["negatives"]), dim=1)
            scores = model(batch["items"], batch["positions"], candidates)
            total = -(F.logsigmoid(scores[:, 0]).sum() + F.logsigmoid(-scores[:, 1:]).sum())
        # Filled on the device: the count is known on the host, copying it over would wait for the device.
        return total, total.new_full((), targets.shape[0])

    def units(self, batch: Tensors) -> int:
        return batch["targets"].shape[0]

    def predict(self, model: torch.nn.Module, batch: Tensors) -> Mapping[str, torch.Tensor]:
        scores = model(batch["items"], batch["positions"])
        seen = (batch.get("seen_rows"), batch.get("seen_items"), batch.get("answer_seen"))
        return {"rank": rank_answers(scores, batch["targets"], *seen)}

    def metrics(self, split: str, outputs: Mapping[str, np.ndarray[Any, Any]]) -> Mapping[str, float]:
        return compute_metrics(outputs["rank"], self._num_items, self._config.evaluate.top_k)

    def baseline(self, split: str, num_samples: int) -> tuple[str, Mapping[str, float]]:
        ranks = rank_by_popularity(self._split, split, self._config.evaluate.mask_seen)[:num_samples]
        return "popularity", compute_metrics(ranks, self._num_items, self._config.evaluate.top_k)

    def step_flops(self, num_units: int) -> float | None:
        """Forward and twice as much backward, of the products alone; padding does not count as work done."""
        model = self._config.model
        feed_forward = model.feed_forward or 4 * model.width
        lengths = self._train.lengths.astype(np.float64)
        mean_span = float((lengths * (lengths + 1) / 2).sum() / lengths.sum())
        per_block = 2 * (4 * model.width**2 + 2 * model.width * feed_forward) + 4 * mean_span * model.width
        num_scored = self._num_items if self._config.loss.kind == "ce" else 1 + (self._config.loss.num_negatives or 1)
        return 3.0 * num_units * (model.blocks * per_block + 2 * model.width * num_scored)

    def details(self) -> Mapping[str, Any]:
        interactions = self._split.interactions
        return {
            "source": self._config.data.path or "generated",
            "users": interactions.num_users,
            "items": self._num_items,
            "events": interactions.num_events,
            "longest": int(interactions.lengths.max()),
            "users_train_only": interactions.num_users - len(self._split.held_out),
            "users_without_targets": interactions.num_users - len(self._split.trained),
        }


def load_split(data: Data) -> Split:
    """Reads or generates, filters, splits; DataError where nothing is left to train on or to evaluate."""
    split = split_last(_load(data))
    left = f"{split.interactions.num_users} users, {split.interactions.num_events} events, {split.interactions.num_items} items"
    where = f"{data.path or 'generated data'} with data.min_events={data.min_events}: {left}"
    do = "give a larger data set, or a smaller data.min_events"
    if split.interactions.num_items < 2:
        raise DataError("there is nothing to choose between: fewer than 2 items", where, do)
    if not len(split.held_out):
        raise DataError("nothing can be evaluated: no user has 3 events (2 are held out)", where, do)
    if not len(split.trained):
        raise DataError("nothing can be trained on: no user has 2 events besides the 2 held out", where, do)
    return split


def _load(data: Data) -> Interactions:
    if data.path is None:
        interactions = generate_interactions(data.users, data.items, data.events_per_user, data.seed)
    else:
        interactions = read_interactions(data.path, data.format)
    return drop_short_users(interactions, data.min_events)
