"""The tenrec recipe's ranker as the engine sees it: data, model, loss, metrics of one configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.recipes.tenrec.auc import auc
from paceline.recipes.tenrec.columns import ACTIONS, HISTORY
from paceline.recipes.tenrec.config import TenrecConfig
from paceline.recipes.tenrec.contexts import Tensors
from paceline.recipes.tenrec.flops import ranker_flops
from paceline.recipes.tenrec.lists import mean_weight
from paceline.recipes.tenrec.metrics import list_metric_names, measure_action, measure_lists
from paceline.recipes.tenrec.opening import Opened, describe, open_data
from paceline.recipes.tenrec.ranker import LIST, Ranker
from paceline.recipes.tenrec.ranking_loss import ranking_losses
from paceline.recipes.tenrec.retriever import Retriever, load_towers
from paceline.recipes.tenrec.samples import EvaluationSamples, ListSamples, take_rows
from paceline.recipes.tenrec.side import ANY
from paceline.recipes.tenrec.two_stage import TwoStage
from paceline.workload import AttentionCall, Draw, Objective, Setting, Workload

SPLITS = ("validation", "test")
_AT_ONCE = 1024
_WHY = "candidates look at the context and themselves, which no fused kernel does: written out"


class RankerWorkload(Workload):
    """Implements `paceline.workload.Workload`, `Attends` and `Infers`."""

    objective = Objective("auc_click", "max")
    unit = "candidates"
    splits: Sequence[str] = SPLITS
    has_static_shapes = True

    def __init__(self, config: TenrecConfig) -> None:
        self._config = config
        self._opened = open_data(config.data)
        data = config.data
        self._train = ListSamples(self._opened.side("train", ANY), data)
        # Of one length whatever was trained with: shorter lists are easier.
        lists = data.model_copy(update={"negatives": config.evaluate.negatives})
        self._evaluated = {name: EvaluationSamples(self._opened.side(name, ANY), lists) for name in SPLITS}
        self._mean_weight = mean_weight(self._train.side, data.negatives)
        self.metric_names: Sequence[str] = (
            *(f"auc_{action}" for action in ACTIONS),
            "log_loss",
            *(f"calibration_{action}" for action in ACTIONS),
            *list_metric_names(config.evaluate.top_k),
        )
        self._retriever: Retriever | None = None
        self._stages: TwoStage | None = None
        if config.evaluate.retrieval is not None:
            self._retriever = Retriever(lambda: load_towers(config, self._opened.sizes), self._opened.table)
            retrieved, top = config.evaluate.retrieved, config.evaluate.top_k[0]
            self._stages = TwoStage(self._opened, self._retriever, retrieved, top)
            self.metric_names = [*self.metric_names, *self._stages.metric_names]

    @property
    def opened(self) -> Opened:
        """The rows that the model was trained on, and their split: what serves it looks things up there."""
        return self._opened

    def build_model(self, setting: Setting) -> Ranker:
        return Ranker(self._opened.sizes, self._config.model)

    def train_set(self) -> ListSamples:
        if self._retriever is not None:
            _ = self._retriever.towers  # missing ones are said before the first step, not at the first evaluation
        return self._train

    def evaluation_set(self, split: str) -> EvaluationSamples:
        return self._evaluated[split]

    def loss(self, model: torch.nn.Module, batch: Tensors) -> tuple[Tensor, Tensor]:
        """Summed over all lists; each weighs 1."""
        losses_B = ranking_losses(model(batch), batch, self._config.loss, self._mean_weight)
        return losses_B.sum(), torch.full((), float(len(losses_B)), device=losses_B.device)

    def attention_calls(self, device_type: str, micro_batch: int, block: int) -> Sequence[AttentionCall]:
        """The candidates' of one layer: all have the same."""
        model = self._config.model
        candidates = {"training": self._config.data.negatives + 1, "evaluation": self._config.evaluate.negatives + 1}
        evaluated = max(len(samples) for samples in self._evaluated.values())
        rows = {"training": min(micro_batch, len(self._train)), "evaluation": min(block, evaluated)}
        return [
            AttentionCall(
                phase,
                count,
                model.heads,
                queries=candidates[phase],
                keys=HISTORY + 2,
                width=model.width // model.heads,
                mask="bias",
                why=_WHY,
                own="torch",
            )
            for phase, count in rows.items()
        ]

    def units(self, ids: Sequence[int]) -> int:
        return len(ids) * (self._config.data.negatives + 1)

    def infer(self, model: torch.nn.Module, batch: Tensors) -> dict[str, Tensor]:
        """Per list the place of its positive among all, and per impression the log-odds of each action."""
        assert isinstance(model, Ranker)
        scores_BC = model(batch)[..., LIST]
        shown = model(take_rows(batch))[:, 0, :LIST]
        return {
            "rank": rank_positives(scores_BC, batch["places"]),
            "logits": shown.view(*batch["row_actions"].shape, LIST),
        }

    def predict(self, model: torch.nn.Module, batch: Tensors) -> Mapping[str, Tensor]:
        """The same, with what came of the impressions, and with what both stages find together."""
        assert isinstance(model, Ranker)
        outputs = self.infer(model, batch) | {"actions": batch["row_actions"]}
        return outputs if self._stages is None else outputs | self._stages.predict(model, batch)

    def metrics(self, split: str, outputs: Mapping[str, np.ndarray[Any, Any]]) -> Mapping[str, float]:
        found = measure_actions(outputs["logits"], outputs["actions"])
        found |= measure_lists(outputs["rank"], self._config.evaluate.negatives + 1, self._config.evaluate.top_k)
        return found if self._stages is None else found | self._stages.measure(outputs)

    def baseline(self, split: str, num_samples: int) -> tuple[str, Mapping[str, float]]:
        """By how often an item was clicked in training: the lists, and every action of the impressions."""
        clicks = torch.from_numpy(self._opened.split.item_counts()[1])
        samples = self._evaluated[split]
        ranks, scores, actions = [], [], []
        for first in range(0, num_samples, _AT_ONCE):
            batch = samples.fetch(range(first, min(first + _AT_ONCE, num_samples)), Draw(0, epoch=0))
            ranks.append(rank_positives(clicks[batch["candidates"]], batch["places"]))
            is_there = batch["row_actions"] >= 0
            scores.append(clicks[batch["row_candidates"][is_there]])
            actions.append(batch["row_actions"][is_there])
        by_clicks, happened = torch.cat(scores).double().numpy(), torch.cat(actions).numpy()
        found = {f"auc_{name}": auc(by_clicks, happened >> bit & 1) for bit, name in enumerate(ACTIONS)}
        top_k = self._config.evaluate.top_k
        return "popularity", found | measure_lists(torch.cat(ranks).numpy(), self._config.evaluate.negatives + 1, top_k)

    def step_flops(self, num_units: int) -> float | None:
        """Forward and twice as much backward, of the products alone."""
        return 3.0 * num_units * ranker_flops(self._config.model, self._config.data.negatives + 1)

    def details(self) -> Mapping[str, Any]:
        return describe(self._opened, self._config.data)


def measure_actions(logits: np.ndarray[Any, Any], actions: np.ndarray[Any, Any]) -> dict[str, float]:
    """AUC and calibration of every action, and the log loss of all four; impressions that are not there do not count."""
    is_there = actions >= 0
    logits, actions = logits[is_there], actions[is_there]
    found = [measure_action(logits[:, bit], actions >> bit & 1) for bit in range(len(ACTIONS))]
    by_name = dict(zip(ACTIONS, found, strict=True))
    each = {f"{metric}_{name}": one[metric] for metric in ("auc", "calibration") for name, one in by_name.items()}
    return each | {"log_loss": sum(one["log_loss"] for one in found)}


def rank_positives(scores_BC: Tensor, places_B: Tensor) -> Tensor:
    """(B,) how many other candidates are not below the positive: ties, and what is not a number, count against it."""
    own_B1 = scores_BC.gather(1, places_B[:, None])
    return (~(scores_BC < own_B1)).sum(1) - 1
