"""The sasrec recipe as the engine sees it: data, model, loss, metrics of one configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from paceline.engine.attend import sdpa_width
from paceline.errors import ConfigError, DataError
from paceline.recipes.rank_metrics import compute_metrics, metric_names
from paceline.recipes.sasrec.block import hidden_width
from paceline.recipes.sasrec.candidates import draw_candidates
from paceline.recipes.sasrec.catalogue import rank_among, rank_among_all
from paceline.recipes.sasrec.config import Data, Loss, SasrecConfig
from paceline.recipes.sasrec.generate import generate_interactions
from paceline.recipes.sasrec.groups import ROWS
from paceline.recipes.sasrec.histories import place_histories
from paceline.recipes.sasrec.interactions import Floats, Interactions, drop_short_users
from paceline.recipes.sasrec.losses import build_loss
from paceline.recipes.sasrec.popularity import rank_by_popularity
from paceline.recipes.sasrec.readers import read_interactions
from paceline.recipes.sasrec.recommend import recommend
from paceline.recipes.sasrec.recommender import Recommender
from paceline.recipes.sasrec.samples import EvaluationSet, Tensors, TrainSet
from paceline.recipes.sasrec.split import SPLITS, Split, split_last
from paceline.recipes.sasrec.step_negatives import FromBatch, FromCatalogue, StepNegatives
from paceline.recipes.sasrec.windows import Windows
from paceline.workload import AttentionCall, Objective, Recommendation, Setting


class SasrecWorkload:
    """Implements `paceline.workload.Workload`, `Attends` and `Recommends`."""

    unit = "items"
    draws_numbers = True
    splits: Sequence[str] = SPLITS

    def __init__(self, config: SasrecConfig) -> None:
        self._config = config
        self.has_static_shapes = config.data.placement == "device"
        self._split = load_split(config.data)
        _check_against_data(config, self._split.interactions)
        self._num_items = self._split.interactions.num_items
        self._histories = place_histories(self._split, config.model.time)
        self._windows = Windows(self._split, config.data.max_length, is_random=config.data.window == "random")
        self._frequencies = _frequencies(config.loss, self._split, self._windows)
        self._train = TrainSet(self._histories, self._windows, self._step_negatives(), config)
        is_sampled = config.evaluate.candidates == "sampled"
        self._candidates = draw_candidates(self._split, config.evaluate.num_candidates) if is_sampled else None
        self._evaluation = {
            name: EvaluationSet(self._split, name, self._histories, self._candidates, config) for name in SPLITS
        }
        self.metric_names: Sequence[str] = metric_names(config.evaluate.top_k)
        self.objective = Objective(f"ndcg_{config.evaluate.top_k[0]}", "max")

    def build_model(self, setting: Setting) -> Recommender:
        frequencies = None if self._frequencies is None else torch.from_numpy(self._frequencies)
        loss = build_loss(self._config.loss, self._num_items, frequencies)
        length, model = self._config.data.max_length, self._config.model
        return Recommender(self._num_items, length, model, loss, setting.attention, setting.needs_even_calls)

    def train_set(self) -> TrainSet:
        return self._train

    def evaluation_set(self, split: str) -> EvaluationSet:
        return self._evaluation[split]

    def loss(self, model: torch.nn.Module, batch: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        """Summed over all targets; each weighs 1."""
        if "places" in batch:
            batch = self._train.cut(dict(batch))
        return model(batch), (batch["targets"] > 0).sum(dtype=torch.float32)

    def attention_calls(self, device_type: str, micro_batch: int, block: int) -> Sequence[AttentionCall]:
        """On a GPU all rows at once, on a CPU the longest group of them; every block of the model has the same."""
        model = self._config.model
        width = model.width // model.heads
        evaluated = list(self._evaluation.values())
        sizes = {
            "training": (min(micro_batch, len(self._train)), self._train.longest),
            "evaluation": (min(block, len(evaluated[0])), max(samples.longest for samples in evaluated)),
        }
        return [
            AttentionCall(
                phase,
                rows if device_type == "cuda" else min(rows, ROWS),
                model.heads,
                queries=length,
                keys=length,
                width=width if model.time else sdpa_width(width, device_type),
                is_causal=True,
                dropout=model.attention_dropout if phase == "training" else 0.0,
                kernels=("eager",) if model.time else ("eager", "sdpa", "flex"),
                why="model.time=true sums values per interval, which no fused kernel does: written out",
            )
            for phase, (rows, length) in sizes.items()
        ]

    def units(self, ids: Sequence[int]) -> int:
        return int(self._windows.lengths[np.asarray(ids, np.int64)].sum())

    def predict(self, model: torch.nn.Module, batch: Tensors) -> Mapping[str, torch.Tensor]:
        assert isinstance(model, Recommender)
        hidden_BD, weights_ND = model.last_hidden(batch), model.item_weights()
        if "candidates" in batch:
            return {"rank": rank_among(hidden_BD, weights_ND, batch["answers"], batch["candidates"])}
        return {"rank": rank_among_all(hidden_BD, weights_ND, batch["answers"], batch.get("seen"))}

    def metrics(self, split: str, outputs: Mapping[str, np.ndarray[Any, Any]]) -> Mapping[str, float]:
        return compute_metrics(outputs["rank"], self._num_ranked, self._config.evaluate.top_k)

    def baseline(self, split: str, num_samples: int) -> tuple[str, Mapping[str, float]]:
        ranks = rank_by_popularity(self._split, split, self._config.evaluate.mask_seen, self._candidates)[:num_samples]
        return "popularity", compute_metrics(ranks, self._num_ranked, self._config.evaluate.top_k)

    def observe(self, model: torch.nn.Module) -> Mapping[str, float]:
        assert isinstance(model, Recommender)
        return model.observe()

    def recommend(
        self,
        model: torch.nn.Module,
        *,
        user: str | None,
        history: Sequence[str] | None,
        top: int,
        keep_seen: bool,
    ) -> Recommendation:
        assert isinstance(model, Recommender)
        return recommend(
            model, self._split, self._histories, self._config, user=user, history=history, top=top, keep_seen=keep_seen
        )

    def step_flops(self, num_units: int) -> float | None:
        """Forward and twice as much backward, of the products alone; padding does not count as work done."""
        model, loss = self._config.model, self._config.loss
        num_products = 3 if model.activation == "swiglu" else 2
        lengths = self._windows.lengths.astype(np.float64)
        mean_span = float((lengths * (lengths + 1) / 2).sum() / lengths.sum())
        feed_forward = num_products * model.width * hidden_width(model)
        per_block = 2 * (4 * model.width**2 + feed_forward) + 4 * mean_span * model.width
        num_scored = self._num_items if loss.kind == "ce" else 1 + loss.count
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

    @property
    def _num_ranked(self) -> int:
        """Items that an answer is ranked among, itself included."""
        evaluate = self._config.evaluate
        return self._num_items if evaluate.candidates == "all" else 1 + evaluate.num_candidates

    def _step_negatives(self) -> StepNegatives | None:
        loss = self._config.loss
        if not loss.is_shared:
            return None
        if loss.negatives == "in_batch":
            return FromBatch(loss.count, self._windows, self._split.interactions.items)
        assert self._frequencies is not None
        return FromCatalogue(loss.count, self._frequencies)


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


def _check_against_data(config: SasrecConfig, interactions: Interactions) -> None:
    evaluate = config.evaluate
    if evaluate.candidates == "sampled" and evaluate.num_candidates >= interactions.num_items:
        raise ConfigError(
            f"evaluate.num_candidates={evaluate.num_candidates} of a catalogue of {interactions.num_items} items",
            "evaluate.num_candidates",
            "give a smaller number, or set evaluate.candidates=all",
        )
    if config.model.time and interactions.times is None:
        raise ConfigError(
            "model.time=true needs the time of every event, and this data has none",
            f"data.path={config.data.path}",
            "set model.time=false, or give a file with timestamps (paceline prepare movielens keeps them)",
        )


def _frequencies(loss: Loss, split: Split, windows: Windows) -> Floats | None:
    """How likely a negative is each item, at its id - 1; None where negatives are drawn evenly from all but the answer, or not at all."""
    interactions = split.interactions
    if loss.kind == "ce" or (loss.negatives == "uniform" and not loss.is_shared):
        return None
    if loss.negatives == "uniform":
        return np.full(interactions.num_items, 1 / interactions.num_items)
    if loss.negatives == "popularity":
        counts = split.train_counts()
        shares: Floats = counts / counts.sum()
        return shares
    return windows.target_frequencies(interactions.items, interactions.num_items)
