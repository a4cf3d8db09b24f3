"""Text token by token: a prompt goes through the model once, then every further token through the caches alone.

decoder = Decoder(model)
logits_BV = decoder.prefill(prompt_BT)
logits_BV = decoder.step(logits_BV.argmax(-1))
decoder.bytes_read                        what attention has read of the caches so far

A token is some hundreds of small kernels, and launching them takes longer than they do. Where the caches allow it, the whole step is
recorded as a CUDA graph once, and replayed with one launch, until the caches have to move to more room.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from paceline.engine.graph import Recorder
from paceline.recipes.nsa.block import Block, Cache
from paceline.recipes.nsa.model import LanguageModel
from paceline.recipes.nsa.moment import build_moment
from paceline.recipes.nsa.pattern import one_document

_WARM_UPS = 2
"""Before recording: kernels are compiled, and libraries set themselves up, none of which can be recorded."""


class Decoder:
    """One document per row, all of the same length.

    `caches`: one per layer, where they hold a prompt already. `can_replay` False: every step is launched kernel by kernel.
    """

    def __init__(self, model: LanguageModel, caches: Sequence[Cache] | None = None, can_replay: bool = True) -> None:
        self._model = model
        self._caches = model.build_caches() if caches is None else caches
        self._can_replay = can_replay and all(cache.can_replay for cache in self._caches)
        self._replay: Callable[[], None] | None = None
        self._tokens_B = self._position_1 = self._logits_BV = torch.empty(0)

    @property
    def length(self) -> int:
        """Tokens so far."""
        return self._caches[0].length

    @property
    def bytes_read(self) -> int:
        return sum(cache.bytes_read for cache in self._caches)

    @property
    def is_replaying(self) -> bool:
        """Whether the last step was a replay."""
        return self._replay is not None

    @torch.no_grad()
    def prefill(self, tokens_BT: Tensor) -> Tensor:
        """(B, V): logits of the token after the prompt."""
        assert self.length == 0, "a prompt comes first"
        rows, length = tokens_BT.shape
        positions_BT = one_document(rows, length, tokens_BT.device)
        return self._score(self._model.encode(tokens_BT, positions_BT, self._caches))

    @torch.no_grad()
    def step(self, tokens_B: Tensor) -> Tensor:
        """(B, V): logits of the token after these."""
        have_moved = [cache.make_room() for cache in self._caches]
        if any(have_moved):
            self._replay = None
        if self._replay is None:
            self._tokens_B = tokens_B.clone()
            self._position_1 = torch.full((1,), self.length, device=tokens_B.device)
            if self._can_replay:
                self._record()
        else:
            self._tokens_B.copy_(tokens_B)
            self._position_1.fill_(self.length)
        if self._replay is None:
            logits_BV = self._compute()
        else:
            self._replay()
            # The next replay overwrites them.
            logits_BV = self._logits_BV.clone()
        for cache in self._caches:
            cache.advance()
        return logits_BV

    def _compute(self) -> Tensor:
        """Of the tokens and the position that stand on the device; it may be repeated where the caches can be replayed."""
        model = self._model
        hidden_B1W = model.token_embedding(self._tokens_B[:, None])
        shape, dtype = model.shape, model.token_embedding.weight.dtype
        moment = build_moment(self._position_1, shape.pattern, shape.head_width, dtype)
        for block, cache in zip(model.blocks, self._caches, strict=True):
            assert isinstance(block, Block)
            hidden_B1W = block.decode(hidden_B1W, moment, cache)
        return self._score(model.final_norm(hidden_B1W))

    def _record(self) -> None:
        # A new one each time: with the last recording its memory has gone, and nothing can be recorded into that any more.
        recorder = Recorder(self._tokens_B.device)
        for _ in range(_WARM_UPS):
            recorder.warm_up(self._compute)
        try:
            self._replay, self._logits_BV = recorder.record(self._compute)
        except RuntimeError as error:
            self._can_replay = False
            why = str(error).strip().splitlines()[0]
            warnings.warn(
                f"decoding goes on without a CUDA graph, more slowly: it cannot be recorded: {why}", stacklevel=3
            )

    def _score(self, hidden_BTW: Tensor) -> Tensor:
        last_BW = hidden_BTW[:, -1]
        return (last_BW @ self._model.token_embedding.weight.to(last_BW.dtype).T).float()
