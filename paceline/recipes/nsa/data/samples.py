"""The samples that a language model is trained and evaluated on, fetched many at a time: the same for an id on any rank of any number.

    found = load_samples(config.data)
    found.train.fetch([7, 3], draw)          the dictionary of a TokenBatch: two rows of data.length tokens
    found.vocabulary, found.tokenizer, found.details

Nothing depends on what was fetched before, and an epoch ends with the data: every sample once, in the engine's order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.errors import ConfigError, DataError
from paceline.recipes.nsa.batch import TokenBatch
from paceline.recipes.nsa.data import synthetic
from paceline.recipes.nsa.data.corpus import write_corpus
from paceline.recipes.nsa.data.needle import draw_needle, read_filler
from paceline.recipes.nsa.data.packing import Packed, count_samples, pack_sample
from paceline.recipes.nsa.data.source import find_shards, find_tokenizer, read_vocabulary
from paceline.recipes.nsa.data.split import SPLITS, side_of
from paceline.recipes.nsa.data.stream import TokenStream, join_documents, map_shards
from paceline.recipes.nsa.data.tokenizer import Tokenizer
from paceline.recipes.nsa.data_config import Data, check_data
from paceline.workload import Draw, SampleSet

_HELD_OUT = 0.05
"""of the generated corpus"""
_FILLER_DOCUMENTS = 200
_EVALUATED = 256
"""samples of a validation that is drawn"""


class TokenSamples(SampleSet):
    """Samples by their ids, from whatever makes one."""

    def __init__(self, count: int, make: Callable[[int, int], Packed], count_tokens: Callable[[int], int]) -> None:
        self._count = count
        self._make = make
        self._count_tokens = count_tokens

    def __len__(self) -> int:
        return self._count

    def fetch(self, ids: Sequence[int], draw: Draw) -> dict[str, Tensor]:
        made = [self._make(int(sample), draw.epoch) for sample in ids]
        input_ids, labels, positions = (np.stack(rows) for rows in zip(*made, strict=True))
        return TokenBatch(
            torch.from_numpy(input_ids),
            torch.from_numpy(labels),
            torch.from_numpy(positions.astype(np.int32)),
        ).tensors()

    def num_tokens(self, ids: Sequence[int]) -> int:
        """Without padding, counted on the host without fetching."""
        return sum(self._count_tokens(int(sample)) for sample in ids)


@dataclass(frozen=True)
class LanguageData:
    """Both sides of the data."""

    train: TokenSamples
    validation: TokenSamples
    vocabulary: int
    tokenizer: Tokenizer | None
    """None: these tokens are no text"""
    details: Mapping[str, Any] = field(default_factory=dict)
    """worth printing"""


def load_samples(data: Data) -> LanguageData:
    """DataError or ConfigError where there is nothing to train on, or to evaluate."""
    problems = list(check_data(data))
    if problems:
        raise ConfigError(problems=problems)
    if data.source in ("text", "shards"):
        return _pack(data)
    return _draw(data)


def _pack(data: Data) -> LanguageData:
    tokenizer = find_tokenizer(data)
    assert tokenizer is not None
    streams = _map(data) if data.source == "shards" else _write(data, tokenizer)
    packed = {split: _pack_stream(stream, data, tokenizer.identity.padding) for split, stream in streams.items()}
    for split, samples in packed.items():
        if not len(samples):
            where = f"data.path={data.path}" if data.source == "shards" else f"data.documents={data.documents}"
            raise DataError(f"there are no {split} documents", where, "prepare, or generate, more text")
    details: dict[str, Any] = {"source": data.path if data.source == "shards" else "generated text"}
    for split, stream in streams.items():
        details |= {f"{split}_documents": stream.num_documents, f"{split}_tokens": len(stream)}
    details["vocabulary"] = tokenizer.identity.vocabulary
    return LanguageData(packed["train"], packed["validation"], tokenizer.identity.vocabulary, tokenizer, details)


def _pack_stream(stream: TokenStream, data: Data, padding: int) -> TokenSamples:
    length = data.length
    return TokenSamples(
        count_samples(stream, length),
        lambda sample, epoch: pack_sample(stream, sample, length, padding),
        lambda sample: min(length, len(stream) - sample * length),
    )


def _map(data: Data) -> dict[str, TokenStream]:
    directory, manifest = find_shards(data)
    return {split: map_shards(directory, manifest, split) for split in SPLITS}


def _write(data: Data, tokenizer: Tokenizer) -> dict[str, TokenStream]:
    texts = write_corpus(data.documents, data.seed)
    encoded = tokenizer.encode(texts)
    for tokens in encoded:
        tokens.append(tokenizer.identity.end)
    sides = [side_of(text, _HELD_OUT) for text in texts]
    return {
        split: join_documents(
            [tokens for tokens, side in zip(encoded, sides, strict=True) if side == split],
            tokenizer.identity.vocabulary,
            "generated text",
        )
        for split in SPLITS
    }


def _draw(data: Data) -> LanguageData:
    make: Callable[[str, int, int], Packed]
    details: dict[str, Any] = {"source": data.source, "vocabulary": read_vocabulary(data)}
    if data.source == "needle":
        filler = read_filler(write_corpus(_FILLER_DOCUMENTS, data.seed))
        details["answers_per_sample"] = data.needle_pairs * data.needle_tokens

        def make(split: str, sample: int, epoch: int) -> Packed:
            return draw_needle(data, split, sample, epoch, filler)
    else:
        details["note"] = synthetic.NOTE

        def make(split: str, sample: int, epoch: int) -> Packed:
            return synthetic.draw_synthetic(data, split, sample)

    def build(split: str, count: int) -> TokenSamples:
        return TokenSamples(count, lambda sample, epoch: make(split, sample, epoch), lambda sample: data.length)

    train, validation = build("train", data.samples), build("validation", min(data.samples, _EVALUATED))
    return LanguageData(train, validation, read_vocabulary(data), None, details)
