"""The text encoder: BERT or RoBERTa of `transformers`, frozen or trained; and the tokenizer that goes with it.

    encoder = build_text("small", dropout=None, kernel="sdpa", pooling="mean", is_frozen=False)
    texts_BW = encoder(tokens_BT, num_tokens_B)
    build_tokenizer("small").encode(["A WORD"])

A frozen encoder is always in evaluation mode, and keeps no history.

Shapes: B rows, T tokens, W width.
"""

from __future__ import annotations

import contextlib
from typing import Any, Self

import torch
from torch import Tensor, nn

from paceline.errors import ConfigError
from paceline.recipes.csa.config import BUILT
from paceline.recipes.csa.pooling import attention_mask, mask_of, mean_of
from paceline.recipes.csa.stored import load_stored, read_config
from paceline.recipes.csa.tokens import ByteTokens, StoredTokens, TextTokenizer

_POSITIONS = 1024
"""of encoders that read bytes: the longest transcripts of read speech have some 600"""
_SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}


def text_config(name: str, dropout: float | None) -> Any:
    """The configuration of an encoder, without its weights."""
    from transformers import BertConfig

    if name in BUILT:
        sizes = _SMALL if name == "small" else {}
        bytes_ = {"vocab_size": ByteTokens.vocabulary, "pad_token_id": ByteTokens.padding}
        config = BertConfig(**sizes, **bytes_, max_position_embeddings=_POSITIONS)
        dropout = 0.0 if dropout is None and name == "small" else dropout
    else:
        config = read_config(name, "text", ("bert", "roberta"))
    if dropout is not None:
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = dropout
    return config


def build_tokenizer(name: str) -> TextTokenizer:
    """ConfigError where it knows more tokens than the encoder."""
    if name in BUILT:
        return ByteTokens(_POSITIONS)
    from transformers import AutoTokenizer

    config = text_config(name, None)
    # RoBERTa numbers positions from the one after padding's on.
    limit = config.max_position_embeddings - (config.pad_token_id + 1 if config.model_type == "roberta" else 0)
    tokenizer = StoredTokens(load_stored(AutoTokenizer.from_pretrained, name, "text"), limit)
    if tokenizer.vocabulary > config.vocab_size:
        what = (
            f"the tokenizer has {tokenizer.vocabulary:,} tokens, and the encoder beside it embeds {config.vocab_size:,}"
        )
        raise ConfigError(what, f"model.text={name}", "give the tokenizer that the encoder was trained with")
    return tokenizer


def build_text(name: str, dropout: float | None, kernel: str, pooling: str, is_frozen: bool) -> TextEncoder:
    """With random weights from torch's generator, or those that were stored."""
    from transformers import AutoModel, BertModel

    config = text_config(name, dropout)
    config._attn_implementation = kernel
    if name in BUILT:
        bert = BertModel(config, add_pooling_layer=False)
    else:
        options = {"config": config, "attn_implementation": kernel, "dtype": torch.float32}
        bert = load_stored(AutoModel.from_pretrained, name, "text", add_pooling_layer=False, **options)
    return TextEncoder(bert, kernel, pooling, is_frozen)


class TextEncoder(nn.Module):
    """One vector from each row of tokens."""

    def __init__(self, bert: Any, kernel: str, pooling: str, is_frozen: bool) -> None:
        super().__init__()
        self.bert = bert
        self.config = bert.config
        self._kernel, self._pooling, self._is_frozen = kernel, pooling, is_frozen
        if is_frozen:
            bert.requires_grad_(False)
            bert.eval()

    @property
    def width(self) -> int:
        return int(self.config.hidden_size)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self._is_frozen:
            self.bert.eval()
        return self

    def forward(self, tokens_BT: Tensor, num_tokens_B: Tensor) -> Tensor:
        mask_BT = mask_of(num_tokens_B, tokens_BT.shape[1])
        with torch.no_grad() if self._is_frozen else contextlib.nullcontext():
            embedded_BTW = self.bert.embeddings(tokens_BT)
            # The encoder itself, not the whole model: that looks into masks on the host, and a GPU would be waited for.
            mask = attention_mask(mask_BT, self._kernel, embedded_BTW.dtype)
            hidden_BTW = self.bert.encoder(embedded_BTW, attention_mask=mask).last_hidden_state
        return mean_of(hidden_BTW, mask_BT) if self._pooling == "mean" else hidden_BTW[:, 0]
