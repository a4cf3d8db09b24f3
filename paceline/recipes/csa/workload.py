"""The csa recipe as the engine sees it: data, model, loss, metrics of one configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.recipes.csa.config import CsaConfig
from paceline.recipes.csa.contrast import contrast
from paceline.recipes.csa.data_config import RATE
from paceline.recipes.csa.flops import count_flops
from paceline.recipes.csa.metrics import METRICS, chance, measure
from paceline.recipes.csa.model import Aligner
from paceline.recipes.csa.padding import Padding
from paceline.recipes.csa.samples import MeasuredSamples, SpeechSamples
from paceline.recipes.csa.speech import build_speech, receptive_field, speech_config
from paceline.recipes.csa.stored import check_transformers
from paceline.recipes.csa.text import build_text, build_tokenizer, text_config
from paceline.recipes.csa.utterances import Utterances, load_utterances
from paceline.workload import AttentionCall, Embedded, Objective, Setting, Workload

_WHY = "the encoders of `transformers` are asked for eager or sdpa alone"


class CsaWorkload(Workload):
    """Implements `paceline.workload.Workload`, `Contrasts` and `Attends`."""

    objective = Objective("recall_1", "max")
    metric_names = METRICS
    unit = "audio seconds"

    def __init__(self, config: CsaConfig) -> None:
        check_transformers()
        self._config = config
        data, model, pairs = config.data, config.model, config.evaluate.train_pairs
        self._speech = speech_config(model.speech, model.dropout)
        self._text = text_config(model.text, model.dropout)
        self._tokenizer = build_tokenizer(model.text)
        sides = load_utterances(data)
        self._note = sides.note
        is_bucketed = data.bucket and data.crop != "fixed"
        self._train = self._pairs(sides.train, is_drawn=True, kind=MeasuredSamples if is_bucketed else SpeechSamples)
        self._evaluated = {"validation": self._pairs(sides.validation)}
        if pairs:
            self._evaluated["train"] = self._pairs(sides.train.first(pairs))
        self.splits: Sequence[str] = tuple(self._evaluated)
        self._padding = Padding()

    def _pairs(
        self, utterances: Utterances, is_drawn: bool = False, kind: type[SpeechSamples] = SpeechSamples
    ) -> SpeechSamples:
        shortest = receptive_field(self._speech)
        return kind(utterances, self._tokenizer, self._config.data, shortest, is_drawn=is_drawn)

    def build_model(self, setting: Setting) -> Aligner:
        model = self._config.model
        speech = build_speech(model.speech, model.dropout, setting.attention)
        text = build_text(model.text, model.dropout, setting.attention, model.text_pooling, model.freeze_text)
        return Aligner(speech, text, model.width, model.temperature)

    def train_set(self) -> SpeechSamples:
        return self._train

    def evaluation_set(self, split: str) -> SpeechSamples:
        return self._evaluated[split]

    def embed(self, model: torch.nn.Module, batch: Mapping[str, Tensor]) -> Embedded:
        # Once for each batch: the first pass of two has no gradient.
        if model.training and torch.is_grad_enabled():
            self._padding.count(batch)
        return Embedded(*model(batch))

    def contrast(self, rows: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        """Summed over all pairs of the step; each weighs 1."""
        return contrast(rows, shared)

    def attention_calls(self, device_type: str, micro_batch: int, block: int) -> Sequence[AttentionCall]:
        """Of each encoder one, for the longest rows there are; all its layers have the same. A frozen one has no dropout."""
        rows = {"training": (min(micro_batch, len(self._train)), self._train)}
        longest = max(self._evaluated.values(), key=lambda samples: samples.longest)
        rows["evaluation"] = (min(block, len(longest)), longest)
        calls = []
        for phase, (count, samples) in rows.items():
            frames = -(-samples.longest // math.prod(self._speech.conv_stride))  # as many as rows are filled up to
            text_dropout = 0.0 if self._config.model.freeze_text else self._text.attention_probs_dropout_prob
            for name, encoder, length, dropout in (
                ("speech", self._speech, frames, self._speech.attention_dropout),
                ("text", self._text, samples.most_tokens, text_dropout),
            ):
                heads = encoder.num_attention_heads
                calls.append(
                    AttentionCall(
                        phase,
                        count,
                        heads,
                        queries=length,
                        keys=length,
                        width=encoder.hidden_size // heads,
                        mask="boolean",
                        dropout=dropout if phase == "training" else 0.0,
                        kernels=("eager", "sdpa"),
                        why=_WHY,
                        name=name,
                    )
                )
        return calls

    def units(self, ids: Sequence[int]) -> int:
        """Seconds as the crops of these utterances have on average: which ones an epoch drew is not known here."""
        return round(self._train.mean_seconds(ids))

    def predict(self, model: torch.nn.Module, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        assert isinstance(model, Aligner)
        return {"speech": model.embed_speech(batch), "text": model.embed_text(batch), "text_key": batch["text_keys"]}

    def metrics(self, split: str, outputs: Mapping[str, np.ndarray[Any, Any]]) -> Mapping[str, float]:
        return measure(outputs["speech"], outputs["text"], outputs["text_key"])

    def baseline(self, split: str, num_samples: int) -> tuple[str, Mapping[str, float]]:
        return "chance", chance(num_samples)

    def observe(self, model: torch.nn.Module) -> Mapping[str, float]:
        assert isinstance(model, Aligner)
        share = self._padding.take_share()
        return {"temperature": model.temperature()} | ({} if share is None else {"padding_share": share})

    def step_flops(self, num_units: int) -> float | None:
        return num_units * self._flops_per_second

    def details(self) -> Mapping[str, Any]:
        data, train, validation = self._config.data, self._train, self._evaluated["validation"]
        return {
            "source": data.manifest or data.path or "generated tones",
            "train_hours": round(train.hours, 3),
            "validation_hours": round(validation.hours, 3),
            "seconds_per_pair": round(self._mean_seconds, 3),
            "tokens_per_pair": round(train.mean_tokens, 1),
            "speech_encoder": f"{self._config.model.speech}, {self._speech.hidden_size} wide",
            "text_encoder": f"{self._config.model.text}, {self._text.hidden_size} wide",
        } | ({"note": self._note} if self._note else {})

    @cached_property
    def _mean_seconds(self) -> float:
        return self._train.mean_seconds(range(len(self._train))) / len(self._train)

    @cached_property
    def _flops_per_second(self) -> float:
        # A pair as long as the mean stands for all: a row's attention, which is not linear, is a few percent of it.
        is_frozen = self._config.model.freeze_text
        seconds = max(self._mean_seconds, receptive_field(self._speech) / RATE)
        return count_flops(self._speech, self._text, seconds, self._train.mean_tokens, is_frozen)
