"""Documents one after another as a single stream of tokens, whether they lie in memory or in mapped files.

stream = map_shards(directory, manifest, "train")
stream.tokens(1000, 1256)        256 tokens, from whichever shards they lie in
stream.starts(1000, 1256)        the positions among them at which a document begins
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import DataError
from paceline.recipes.nsa.data.manifest import Manifest
from paceline.recipes.nsa.data.shards import HEADER_BYTES, REMAKE, check_tokenizer, read_header

Ints = np.ndarray[Any, np.dtype[np.int64]]
Numbers = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Segment:
    """The documents of one shard: document i is tokens[offsets[i]:offsets[i + 1]]."""

    tokens: Numbers
    offsets: Numbers
    name: str


class TokenStream:
    """Segments, one after another; a document never goes on in the next one."""

    def __init__(self, segments: Sequence[Segment], vocabulary: int) -> None:
        self._segments = segments
        self._vocabulary = vocabulary
        self._bounds: Ints = np.cumsum([0, *(len(segment.tokens) for segment in segments)], dtype=np.int64)

    def __len__(self) -> int:
        """Tokens."""
        return int(self._bounds[-1])

    @property
    def num_documents(self) -> int:
        return sum(len(segment.offsets) - 1 for segment in self._segments)

    def tokens(self, first: int, end: int) -> Ints:
        parts = [np.empty(0, np.int64)]
        for segment, _, begin, stop in self._overlaps(first, end):
            part = segment.tokens[begin:stop].astype(np.int64)
            if part.max() >= self._vocabulary:
                # An embedding asked for it would end the process, on a GPU without saying why.
                what = f"a token is {part.max()}, and the vocabulary has {self._vocabulary:,}: the shard is damaged"
                raise DataError(what, segment.name, REMAKE)
            parts.append(part)
        return np.concatenate(parts)

    def starts(self, first: int, end: int) -> Ints:
        """Positions in the whole stream."""
        parts = [np.empty(0, np.int64)]
        for segment, origin, begin, stop in self._overlaps(first, end):
            low, high = np.searchsorted(segment.offsets, np.array([begin, stop], segment.offsets.dtype))
            parts.append(segment.offsets[low:high].astype(np.int64) + origin)
        return np.concatenate(parts)

    def _overlaps(self, first: int, end: int) -> list[tuple[Segment, int, int, int]]:
        """Each segment that holds some of these positions, where it begins, and which of its own they are."""
        index = int(np.searchsorted(self._bounds, first, side="right")) - 1
        found = []
        while index < len(self._segments) and self._bounds[index] < end:
            origin = int(self._bounds[index])
            begin, stop = max(first - origin, 0), min(end - origin, len(self._segments[index].tokens))
            if begin < stop:
                found.append((self._segments[index], origin, begin, stop))
            index += 1
        return found


def map_shards(directory: Path, manifest: Manifest, split: str) -> TokenStream:
    """The shards of a split, mapped: what is not looked at is not read."""
    segments = [_map(directory / shard.file, manifest) for shard in manifest.shards(split)]
    return TokenStream(segments, manifest.tokenizer.vocabulary)


def _map(path: Path, manifest: Manifest) -> Segment:
    header = read_header(path)
    check_tokenizer(header, manifest.tokenizer, path)
    kind = np.dtype("<u2" if header.token_bytes == 2 else "<u4")
    tokens = np.memmap(path, kind, "r", offset=HEADER_BYTES, shape=(header.tokens,))
    offsets = np.memmap(path, np.dtype("<u8"), "r", offset=header.offsets_at, shape=(header.documents + 1,))
    if offsets[0] != 0 or offsets[-1] != header.tokens:
        raise DataError("the offsets of this token shard are damaged", str(path), REMAKE)
    return Segment(tokens, offsets, str(path))


def join_documents(documents: Sequence[array[int]], vocabulary: int, name: str) -> TokenStream:
    """Documents that lie in memory, each with the token that ends it."""
    lengths = [len(document) for document in documents]
    kind = np.dtype(np.uint16 if vocabulary <= 2**16 else np.uint32)
    parts = [np.empty(0, kind), *(np.frombuffer(document, kind) for document in documents)]
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    return TokenStream([Segment(np.concatenate(parts), offsets, name)] if documents else [], vocabulary)
