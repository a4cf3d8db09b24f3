"""Cuts a stream of documents into samples of one length: every token is in one sample, every token but a document's first is one label.

Sample k holds the tokens k·T … (k + 1)·T - 1. A document that does not fit goes on in the next sample, with a fresh context: its positions
begin at 0 again there. The last token of the one piece still predicts the first of the next. The last sample is filled up; nothing is read
twice, and nothing is made up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from paceline.recipes.nsa.batch import NO_LABEL
from paceline.recipes.nsa.data.stream import Ints, TokenStream


class Packed(NamedTuple):
    """One sample, as batch.py describes it."""

    input_ids: Ints
    labels: Ints
    positions: Ints


def count_samples(stream: TokenStream, length: int) -> int:
    """The very last token ends the last document and predicts nothing: alone it makes no sample."""
    return -(-(len(stream) - 1) // length) if len(stream) > 1 else 0


def pack_sample(stream: TokenStream, sample: int, length: int, padding: int) -> Packed:
    """Sample number `sample` of the stream."""
    first = sample * length
    end = min(first + length, len(stream))
    count = end - first
    input_ids = np.full(length, padding, np.int64)
    labels = np.full(length, NO_LABEL, np.int64)
    begins = np.zeros(length + 1, np.bool_)
    tokens = stream.tokens(first, min(end + 1, len(stream)))
    input_ids[:count] = tokens[:count]
    labels[: len(tokens) - 1] = tokens[1:]
    begins[stream.starts(first, min(end + 1, len(stream))) - first] = True
    # What begins a document is nobody's label.
    labels[:count][begins[1 : count + 1]] = NO_LABEL
    begins[0] = True
    begins[count] = True  # padding, or what is after the sample
    return Packed(input_ids, labels, count_positions(begins[:length]))


def count_positions(begins: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Ints:
    """Each token's place in its document, from where documents begin; the first token begins one."""
    places = np.arange(len(begins))
    return places - np.maximum.accumulate(np.where(begins, places, 0))
