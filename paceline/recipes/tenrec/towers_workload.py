"""The tenrec recipe's towers as the engine sees them, with either of two losses: data, model, loss, metrics of one configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.recipes.tenrec.auc import auc
from paceline.recipes.tenrec.catalogue import Catalogue
from paceline.recipes.tenrec.columns import ACTIONS
from paceline.recipes.tenrec.config import TenrecConfig
from paceline.recipes.tenrec.contexts import Tensors
from paceline.recipes.tenrec.flops import tower_flops
from paceline.recipes.tenrec.metrics import list_metric_names, measure_lists
from paceline.recipes.tenrec.opening import Opened, describe, open_data
from paceline.recipes.tenrec.popularity import rank_items
from paceline.recipes.tenrec.retrieval_loss import in_batch_losses, pack, sampled_losses
from paceline.recipes.tenrec.samples import take_rows
from paceline.recipes.tenrec.side import CLICK
from paceline.recipes.tenrec.towers import Towers
from paceline.recipes.tenrec.towers_samples import ClickSamples, EvaluationClicks
from paceline.recipes.tenrec.workload import SPLITS
from paceline.workload import Embedded, Objective, Setting, Workload


class TowersWorkload(Workload):
    """Implements all of `paceline.workload.Workload` but the loss."""

    splits: Sequence[str] = SPLITS
    has_static_shapes = True

    def __init__(self, config: TenrecConfig) -> None:
        self._config = config
        self._opened = open_data(config.data)
        split = self._opened.split
        self._clicks = split.item_counts()[1]
        self._train = ClickSamples(self._opened.side("train", CLICK), self._clicks, config.loss)
        self._evaluated = {name: EvaluationClicks(self._opened.side(name, CLICK)) for name in SPLITS}
        self._catalogue = Catalogue(split.table)
        top_k = config.evaluate.top_k
        self.metric_names: Sequence[str] = (*(f"auc_{action}" for action in ACTIONS), *list_metric_names(top_k))
        self.objective = Objective(f"ndcg_{top_k[0]}", "max")

    @property
    def opened(self) -> Opened:
        """The rows that the model was trained on, and their split: what serves it looks things up there."""
        return self._opened

    def build_model(self, setting: Setting) -> Towers:
        return Towers(self._opened.sizes, self._config.model)

    def train_set(self) -> ClickSamples:
        return self._train

    def evaluation_set(self, split: str) -> EvaluationClicks:
        return self._evaluated[split]

    def predict(self, model: torch.nn.Module, batch: Tensors) -> Mapping[str, Tensor]:
        """Per click the place of its item in the whole catalogue, and per impression the score that all actions are judged by."""
        assert isinstance(model, Towers)
        ranks_B = self._catalogue.rank(model.embed_users(batch), self._catalogue.embed(model), batch["answers"])
        shown = take_rows(batch)
        vectors = model.embed_items(shown["candidates"][:, 0], shown["categories"][:, 0])
        scores = (model.embed_users(shown) * vectors).sum(-1)
        actions = batch["row_actions"]
        return {"rank": ranks_B, "score": scores.view(actions.shape), "actions": actions}

    def metrics(self, split: str, outputs: Mapping[str, np.ndarray[Any, Any]]) -> Mapping[str, float]:
        is_there = outputs["actions"] >= 0
        scores, actions = outputs["score"][is_there], outputs["actions"][is_there]
        found = {f"auc_{name}": auc(scores, actions >> bit & 1) for bit, name in enumerate(ACTIONS)}
        return found | self._measure(outputs["rank"])

    def baseline(self, split: str, num_samples: int) -> tuple[str, Mapping[str, float]]:
        side = self._evaluated[split].side
        return "popularity", self._measure(rank_items(self._clicks)[side.table.item[side.positives[:num_samples]]])

    def _measure(self, ranks: np.ndarray[Any, Any]) -> dict[str, float]:
        return measure_lists(ranks, self._opened.table.num_items, self._config.evaluate.top_k)

    def step_flops(self, num_units: int) -> float | None:
        """Forward and twice as much backward, of the towers' products alone."""
        num_drawn = self._config.loss.num_sampled if self._config.loss.negatives == "sampled" else 0
        num_items = num_units * (1 + num_drawn / self._config.train.global_batch)
        return 3.0 * (num_units + num_items) * tower_flops(self._config.model)

    def details(self) -> Mapping[str, Any]:
        return describe(self._opened, self._config.data)


class InBatchTowers(TowersWorkload):
    """Implements `Contrasts`: a sample's negatives are the items of all other samples of the step, on whatever rank."""

    def embed(self, model: torch.nn.Module, batch: Tensors) -> Embedded:
        users_BD, vectors_BD = model(batch)
        rows = pack(users_BD, vectors_BD, batch["items"], batch["log_q"])
        return Embedded(rows, rows.new_empty(0))

    def contrast(self, rows: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        losses_B = in_batch_losses(rows, self._config.model.temperature)
        return losses_B.sum(), torch.full((), float(len(losses_B)), device=rows.device)


class SampledTowers(TowersWorkload):
    """A sample's negatives are drawn for its step."""

    def loss(self, model: torch.nn.Module, batch: Tensors) -> tuple[Tensor, Tensor]:
        users_BD, vectors_ND = model(batch)
        temperature = self._config.model.temperature
        losses_B = sampled_losses(users_BD, vectors_ND, batch["items"], batch["log_q"], temperature)
        return losses_B.sum(), torch.full((), float(len(losses_B)), device=losses_B.device)


def build_towers_workload(config: TenrecConfig) -> TowersWorkload:
    return InBatchTowers(config) if config.loss.negatives == "in_batch" else SampledTowers(config)
