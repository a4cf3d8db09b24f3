"""From places in the inputs to tokens with their side of the split, many documents at a time. No torch, no numpy."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from paceline.recipes.nsa.data.documents import Found, read_documents
from paceline.recipes.nsa.data.inputs import Inputs
from paceline.recipes.nsa.data.manifest import Place
from paceline.recipes.nsa.data.split import side_of
from paceline.recipes.nsa.data.tokenizer import Tokenizer

_DOCUMENTS, _CHARACTERS = 512, 2**22
"""that are encoded at once: what is in memory of the text"""


@dataclass(frozen=True)
class Encoded:
    """One document as tokens with its end; one without text, or with a fault, has none."""

    after: Place
    where: str
    split: str = ""
    tokens: array[int] | None = None
    fault: str = ""


def encode_documents(
    inputs: Inputs, start: Place, tokenizer: Tokenizer, field: str, validation_share: float
) -> Iterator[Encoded]:
    """Everything from a place on, in the order of the inputs."""
    batch: list[tuple[Place, Found]] = []
    size = 0
    for after, found in _read(inputs, start, field):
        batch.append((after, found))
        size += len(found.text or "")
        if len(batch) >= _DOCUMENTS or size >= _CHARACTERS:
            yield from _encode(batch, tokenizer, validation_share)
            batch, size = [], 0
    yield from _encode(batch, tokenizer, validation_share)


def _read(inputs: Inputs, start: Place, field: str) -> Iterator[tuple[Place, Found]]:
    for index in range(start.input, len(inputs.origins)):
        if not inputs.known[index].bytes:
            continue  # of any kind: without a byte a parquet file is none
        offset, number = (start.offset, start.number) if index == start.input else (0, 0)
        for found in read_documents(inputs.origins[index], field, offset, number):
            yield Place(index, found.offset, found.number), found


def _encode(batch: list[tuple[Place, Found]], tokenizer: Tokenizer, share: float) -> Iterator[Encoded]:
    texts = [found.text for _, found in batch if found.text and not found.text.isspace()]
    encoded = iter(tokenizer.encode(texts))
    for after, found in batch:
        if not found.text or found.text.isspace():
            yield Encoded(after, found.where, fault=found.fault)
            continue
        tokens = next(encoded)
        if not tokens:
            yield Encoded(after, found.where, fault="the tokenizer has no token for anything in this text")
            continue
        tokens.append(tokenizer.identity.end)
        yield Encoded(after, found.where, side_of(found.text, share), tokens)
