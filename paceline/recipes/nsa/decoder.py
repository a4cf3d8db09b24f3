"""Text token by token: a prompt goes through the model once, then every further token through the caches alone.

decoder = Decoder(model)
logits_BV = decoder.prefill(prompt_BT)
logits_BV = decoder.step(logits_BV.argmax(-1))
decoder.bytes_read                        what attention has read of the caches so far
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.recipes.nsa.block import Block
from paceline.recipes.nsa.model import LanguageModel
from paceline.recipes.nsa.pattern import one_document
from paceline.recipes.nsa.rotary import build_rotation


class Decoder:
    """One document per row, all of the same length."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._caches = model.build_caches()

    @property
    def length(self) -> int:
        """Tokens so far."""
        return self._caches[0].length

    @property
    def bytes_read(self) -> int:
        return sum(cache.bytes_read for cache in self._caches)

    @torch.no_grad()
    def prefill(self, tokens_BT: Tensor) -> Tensor:
        """(B, V): logits of the token after the prompt."""
        assert self.length == 0, "a prompt comes first"
        rows, length = tokens_BT.shape
        positions_BT = one_document(rows, length, tokens_BT.device)
        return self._logits(self._model.encode(tokens_BT, positions_BT, self._caches))

    @torch.no_grad()
    def step(self, tokens_B: Tensor) -> Tensor:
        """(B, V): logits of the token after these."""
        model = self._model
        hidden_B1W = model.token_embedding(tokens_B[:, None])
        position_B1 = torch.full_like(tokens_B, self.length)[:, None]
        rotation = build_rotation(position_B1, model.shape.head_width, model.token_embedding.weight.dtype)
        for block, cache in zip(model.blocks, self._caches, strict=True):
            assert isinstance(block, Block)
            hidden_B1W = block.decode(hidden_B1W, rotation, cache)
        return self._logits(model.final_norm(hidden_B1W))

    def _logits(self, hidden_BTW: Tensor) -> Tensor:
        last_BW = hidden_BTW[:, -1]
        return (last_BW @ self._model.token_embedding.weight.to(last_BW.dtype).T).float()
