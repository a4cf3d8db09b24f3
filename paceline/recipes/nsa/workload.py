"""The nsa recipe as the engine sees it: data, model, loss, metrics of one configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.engine.precision import DTYPES
from paceline.errors import UsageError
from paceline.recipes.nsa.attention import Shape
from paceline.recipes.nsa.batch import TokenBatch
from paceline.recipes.nsa.block import swiglu_width
from paceline.recipes.nsa.config import NsaConfig, is_sparse
from paceline.recipes.nsa.data.samples import TokenSamples, load_samples
from paceline.recipes.nsa.flops import count_flops
from paceline.recipes.nsa.gates import BRANCHES
from paceline.recipes.nsa.kernels.hopper import has_hopper
from paceline.recipes.nsa.kernels.tile_choice import keep_tiles, read_tiles, settle_tiles, tell_tiles
from paceline.recipes.nsa.kernels.tile_store import Case
from paceline.recipes.nsa.kernels.tiles import find_shared
from paceline.recipes.nsa.model import LanguageModel, count_parameters
from paceline.recipes.nsa.paths import Path, build_stages, check_rows, choose_path, find_path, name_kernels
from paceline.recipes.nsa.pattern import Pattern
from paceline.recipes.nsa.sampling import write_text
from paceline.recipes.nsa.stages import STAGES, Stages, name_stage
from paceline.workload import AttentionCall, Choice, Objective, Sampled, Setting, Workload

_MOST_TUNING_S = 240


class NsaWorkload(Workload):
    """Implements `paceline.workload.Workload`, `Attends`, `Chooses` and `Settles`."""

    objective = Objective("loss", "min")
    metric_names = ("loss", "perplexity", "accuracy")
    unit = "tokens"
    splits: Sequence[str] = ("validation",)
    has_static_shapes = True
    draws_numbers = False

    def __init__(self, config: NsaConfig) -> None:
        self._config = config
        self._data = load_samples(config.data)
        self._is_sparse, self._why = is_sparse(config)
        # What is drawn is one document per sample; what is cut from text is many, and padding besides.
        self._is_packed = config.data.source in ("text", "shards")

    def build_model(self, setting: Setting) -> LanguageModel:
        """Sparse by what can compute it on this device: a training has asked for its path before (`choices`)."""
        path = find_path(self._config.model.sparse_path, setting.device.type, self._config.model)
        # What was settled on a GPU is carried along, and looked at where there is one.
        settled = setting.settled.get("tiles", {}) if path.name == "fast" else {}
        return self._build(setting, build_stages(path.name, read_tiles(settled)))

    def _build(self, setting: Setting, stages: Stages | None) -> LanguageModel:
        config, model = self._config, self._config.model
        return LanguageModel(
            self._data.vocabulary,
            model.layers,
            build_shape(config),
            model.feed_forward or swiglu_width(model.width),
            stages=stages,
            kernel=None if self._is_sparse else setting.attention,
            is_packed=self._is_packed,
            is_marked=_is_marked(config, setting),
        )

    def choices(self, setting: Setting) -> Sequence[Choice]:
        """Whether attention is sparse, and what computes each branch of it; ConfigError where the path cannot be had."""
        model = self._config.model
        chosen = [Choice("model.sparse", model.sparse, "sparse" if self._is_sparse else "dense", self._why)]
        if self._is_sparse:
            path = choose_path(model.sparse_path, setting.device.type, model, self._config.attention.fallback)
            chosen.append(Choice("model.sparse_path", model.sparse_path, path.name, path.reason))
            chosen += self._tell_tiles(setting, path)
            stages = build_stages(path.name)
            for stage in STAGES:
                computes = "reference.attend" if stages is None else name_stage(stages, stage)
                chosen.append(Choice(f"attention.{stage}", model.sparse_path, computes, path.reason))
        return chosen

    def _tell_tiles(self, setting: Setting, path: Path) -> Sequence[Choice]:
        word = self._config.model.tiles
        if path.name != "fast":
            return [Choice("model.tiles", word, "none", f"no kernels: {path.reason}")]
        # Nothing is settled where the first rank, which does it and which tells of it, has a GPU without kernels.
        settled = setting.settled.get("tiles")
        return tell_tiles(word, settled) if settled else []

    def settle(self, setting: Setting, before: Mapping[str, Any]) -> Mapping[str, Any]:
        """The tiles of the kernels, where kernels compute it; ConfigError where they cannot be launched for so many rows."""
        config, case = self._config, self._find_case(setting)
        if case is None:
            return before
        check_rows(self.attention_calls(setting.device.type, setting.micro_batch, config.evaluate.block))
        # The other ranks wait for it in a collective, and a supervisor for the first step.
        limit_s = min(_MOST_TUNING_S, config.parallel.timeout_s / 2, config.supervise.start_limit_s / 2)
        tiles = settle_tiles(config.model.tiles, case, setting.device, before.get("tiles"), limit_s)
        return {**before, "tiles": tiles}

    def keep(self, setting: Setting, before: Mapping[str, Any]) -> Mapping[str, Any]:
        """The tiles of the training: with them an evaluation gives the same digits."""
        case = self._find_case(setting)
        return {} if case is None else {"tiles": keep_tiles(case, setting.device, before.get("tiles"))}

    def _find_case(self, setting: Setting) -> Case | None:
        """What tiles are chosen for; None: no kernels compute it."""
        config, model = self._config, self._config.model
        if not self._is_sparse or find_path(model.sparse_path, setting.device.type, model).name != "fast":
            return None
        dtype = str(DTYPES[setting.precision]).removeprefix("torch.")
        rows, pattern = min(setting.micro_batch, len(self._data.train)), build_shape(config).pattern
        sizes = (rows, config.data.length, model.heads, model.groups, model.head_width)
        return Case(*sizes, dtype, pattern, has_hopper(setting.device), find_shared(setting.device))

    def train_set(self) -> TokenSamples:
        return self._data.train

    def evaluation_set(self, split: str) -> TokenSamples:
        return self._data.validation

    def loss(self, model: torch.nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Summed over all labels; each weighs 1."""
        return model(batch), TokenBatch.of(batch).num_labels

    def attention_calls(self, device_type: str, micro_batch: int, block: int) -> Sequence[AttentionCall]:
        """Of the dense twin the one there is, of sparse attention one per branch; every block of the model has the same."""
        config, model = self._config, self._config.model
        length = config.data.length
        rows = {
            "training": min(micro_batch, len(self._data.train)),
            "evaluation": min(block, len(self._data.validation)),
        }
        keys = {"": length}
        own: Mapping[str, str] = {"": ""}
        if self._is_sparse:
            pattern = build_shape(config).pattern
            reach = min(length, pattern.selected * pattern.selection_block)
            keys = dict(zip(BRANCHES, (pattern.num_slots(length), reach, min(length, pattern.window)), strict=True))
            own = name_kernels(find_path(model.sparse_path, device_type, model).name)
        has_mask = self._is_sparse or self._is_packed
        return [
            AttentionCall(
                phase,
                count,
                model.heads,
                queries=length,
                keys=num_keys,
                width=model.head_width,
                is_causal=not has_mask,
                mask="boolean" if has_mask else "none",
                why="model.sparse_path decides what computes sparse attention" if self._is_sparse else "",
                name=branch,
                own=own[branch],
            )
            for phase, count in rows.items()
            for branch, num_keys in keys.items()
        ]

    def units(self, ids: Sequence[int]) -> int:
        return self._data.train.num_tokens(ids)

    def predict(self, model: torch.nn.Module, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Per sample: the sum of its losses, its labels, and those that were the likeliest token."""
        assert isinstance(model, LanguageModel)
        losses_BT, is_right_BT = model.score(batch)
        is_labelled_BT = TokenBatch.of(batch).is_labelled
        # In float64: the sum of a long row must not depend on how a device adds.
        return {"loss": losses_BT.double().sum(1), "labels": is_labelled_BT.sum(1), "right": is_right_BT.sum(1)}

    def metrics(self, split: str, outputs: Mapping[str, np.ndarray[Any, Any]]) -> Mapping[str, float]:
        num_labels = max(1, int(outputs["labels"].sum()))
        loss = float(outputs["loss"].sum()) / num_labels
        right = float(outputs["right"].sum()) / num_labels
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "accuracy": right}

    def baseline(self, split: str, num_samples: int) -> tuple[str, Mapping[str, float]]:
        vocabulary = self._data.vocabulary
        values = {"loss": math.log(vocabulary), "perplexity": float(vocabulary), "accuracy": 1 / vocabulary}
        return "every token alike", values

    def observe(self, model: torch.nn.Module) -> Mapping[str, float]:
        assert isinstance(model, LanguageModel)
        return model.observe()

    def sample(
        self, model: torch.nn.Module, prompt: str, *, tokens: int, temperature: float, top: int | None, seed: int
    ) -> Sampled:
        assert isinstance(model, LanguageModel)
        tokenizer, data = self._data.tokenizer, self._config.data
        if tokenizer is None:
            what = f"a model trained on data.source={data.source} knows no text"
            raise UsageError(what, "data.source", "train on data.source=text or shards")
        return write_text(model, tokenizer, data.length, prompt, tokens, temperature, top, seed)

    def step_flops(self, num_units: int) -> float | None:
        return num_units * self._flops_per_token

    def details(self) -> Mapping[str, Any]:
        attention = f"{'sparse' if self._is_sparse else 'dense'} ({self._why})"
        with torch.device("meta"):
            counts = count_parameters(self._build(Setting(torch.device("meta"), "sdpa"), None))
        parts = ", ".join(f"{part} {count:,}" for part, count in counts.items() if count and part != "total")
        return {**self._data.details, "attention": attention, "parameters_by_part": f"{counts['total']:,}: {parts}"}

    @cached_property
    def _flops_per_token(self) -> float:
        config = self._config
        return count_flops(
            config.model,
            self._data.vocabulary,
            config.data.length,
            sparse=self._is_sparse,
            is_packed=self._is_packed,
        )


def _is_marked(config: NsaConfig, setting: Setting) -> bool:
    """Whether somebody looks at the stages: Nsight Systems, or a profile. A profile of compiled code is one of what else runs, without them."""
    telemetry = config.telemetry
    is_profiled = telemetry.profile.start_step is not None and not config.train.compile.enabled
    return is_profiled or (telemetry.nvtx and setting.device.type == "cuda")


def build_shape(config: NsaConfig) -> Shape:
    """The sizes of every layer's attention."""
    model = config.model
    pattern = Pattern(model.block, model.stride, model.selection_block, model.selected, model.window)
    return Shape(model.width, model.heads, model.groups, model.head_width, pattern, model.gate)
