"""Two encoders that meet: speech and its text as vectors of one width and length 1.

    rows_B2D, log_scale_1 = model(batch)

Padding does not change a row: a pair alone and among longer ones has the same embeddings.

Shapes: B pairs, S samples, T frames or tokens, D width of the embeddings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from paceline.recipes.csa.contrast import cap
from paceline.recipes.csa.pooling import AttentionPooling
from paceline.recipes.csa.speech import SpeechEncoder
from paceline.recipes.csa.text import TextEncoder


class Aligner(nn.Module):
    """Pairs in, embeddings out."""

    def __init__(self, speech: SpeechEncoder, text: TextEncoder, width: int, temperature: float) -> None:
        super().__init__()
        self.speech, self.text = speech, text
        self.pooling = AttentionPooling(speech.width)
        self.speech_projection = nn.Linear(speech.width, width)
        self.text_projection = nn.Linear(text.width, width)
        self.log_scale = nn.Parameter(torch.tensor([-math.log(temperature)]))

    def forward(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(B, 2, D) speech and text of each pair, and the scale's logarithm, capped."""
        rows_B2D = torch.stack((self.embed_speech(batch), self.embed_text(batch)), 1)
        return rows_B2D, cap(self.log_scale)

    def embed_speech(self, batch: Mapping[str, Tensor]) -> Tensor:
        frames_BTW, mask_BT = self.speech(batch["audio"], batch["samples"])
        return normalize(self.speech_projection(self.pooling(frames_BTW, mask_BT)).float(), dim=-1)

    def embed_text(self, batch: Mapping[str, Tensor]) -> Tensor:
        return normalize(self.text_projection(self.text(batch["tokens"], batch["num_tokens"])).float(), dim=-1)

    def temperature(self) -> float:
        return math.exp(-float(cap(self.log_scale.detach())))
