"""Text as numbers for a text encoder: the tokenizer that came with it, or bytes for one of ours.

tokenizer = ByteTokens(limit=1024)
tokenizer.encode(["A B"])        [[256, 65, 32, 66]]     the first token stands for the whole text
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

_WHOLE_TEXT, _PADDING = 256, 257
"""after the bytes"""


class TextTokenizer(Protocol):
    padding: int
    vocabulary: int
    limit: int
    """positions that the encoder has"""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each, with whatever the encoder wants before and after; cut off where it has no more positions."""
        ...


class ByteTokens:
    """Bytes of UTF-8, after one token that stands for the whole text."""

    vocabulary = 258
    padding = _PADDING

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[_WHOLE_TEXT, *text.encode()[: self.limit - 1]] for text in texts]


class StoredTokens:
    """A tokenizer of `transformers`."""

    def __init__(self, tokenizer: Any, limit: int) -> None:
        # Loader processes are many already; and its threads would warn of every one of them.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._tokenizer, self.limit = tokenizer, limit
        self.padding: int = tokenizer.pad_token_id
        self.vocabulary: int = len(tokenizer)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        found = self._tokenizer(list(texts), truncation=True, max_length=self.limit)
        return [list(ids) for ids in found["input_ids"]]
