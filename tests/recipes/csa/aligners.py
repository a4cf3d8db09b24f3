"""Small workloads and batches of the csa recipe, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.recipes.csa.model import Aligner
from paceline.recipes.csa.speech import build_speech
from paceline.recipes.csa.text import build_text
from paceline.recipes.csa.workload import CsaWorkload
from paceline.recipes.job import load_job
from paceline.workload import Setting

CPU = Setting(torch.device("cpu"), "sdpa")
SMALL = ("data.sentences=40", "data.validation_share=0.3")


def build(*overrides: str) -> CsaWorkload:
    """On a corpus of 40 sentences."""
    return CsaWorkload(load_job("csa", [*SMALL, *overrides], environ={}).config)  # type: ignore[arg-type]


def build_model(workload: CsaWorkload) -> Aligner:
    torch.manual_seed(0)
    return workload.build_model(CPU)


def whole_loss(workload: CsaWorkload, model: Aligner, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Of a batch that is the whole step."""
    embedded = workload.embed(model, batch)
    return workload.contrast(embedded.rows, embedded.shared)


def build_aligner(feature_norm: str = "group", kernel: str = "sdpa", pooling: str = "mean", **changes: Any) -> Aligner:
    torch.manual_seed(0)
    speech = build_speech("small", None, kernel, feature_norm)
    return Aligner(speech, build_text("small", None, kernel, pooling, **({"is_frozen": False} | changes)), 16, 0.07)


def pad_batch(audios: list[np.ndarray[Any, Any]], texts: list[list[int]]) -> dict[str, Tensor]:
    """Rows as long as the longest."""
    audio, tokens = (torch.zeros(len(rows), max(map(len, rows))) for rows in (audios, texts))
    for rows, table in ((audios, audio), (texts, tokens)):
        for number, row in enumerate(rows):
            table[number, : len(row)] = torch.as_tensor(row)
    return {
        "audio": audio,
        "samples": torch.tensor([len(row) for row in audios]),
        "tokens": tokens.long(),
        "num_tokens": torch.tensor([len(row) for row in texts]),
    }
