from __future__ import annotations

from array import array
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest

from paceline.recipes.nsa.batch import NO_LABEL
from paceline.recipes.nsa.data.packing import Packed, count_samples, pack_sample
from paceline.recipes.nsa.data.stream import Segment, TokenStream, join_documents

PADDING = 257


def make_documents(random: Random, count: int, longest: int) -> list[array[int]]:
    """Documents of very different lengths; each token says where it is from: (document, place) modulo 250."""
    lengths = [1 + int(random.random() ** 4 * longest) for _ in range(count)]
    return [
        array("H", [(7 * index + place) % 250 for place in range(length)] + [256])
        for index, length in enumerate(lengths)
    ]


def in_segments(documents: list[array[int]], sizes: list[int]) -> TokenStream:
    """The same documents in several shards."""
    segments, first = [], 0
    for size in [*sizes, len(documents)]:
        (joined,) = join_documents(documents[first : first + size], 258, "")._segments or [None]
        segments += [] if joined is None else [joined]
        first += size
    return TokenStream(segments, 258)


def pack_all(stream: TokenStream, length: int) -> list[Packed]:
    return [pack_sample(stream, sample, length, PADDING) for sample in range(count_samples(stream, length))]


@pytest.mark.parametrize("seed", range(12))
def test_every_token_once_every_label_once_and_none_across_documents(seed: int) -> None:
    random = Random(seed)
    documents = make_documents(random, 1 + int(random.random() * 60), 1 + int(random.random() * 300))
    stream = join_documents(documents, 258, "")
    length = 8 + int(random.random() * 120)
    packed = pack_all(stream, length)
    flat = [token for document in documents for token in document]
    owner = [index for index, document in enumerate(documents) for _ in document]
    inputs = np.concatenate([one.input_ids for one in packed])
    # Only the very last token, which predicts nothing, may be left out, and only padding is added.
    kept = min(len(inputs), len(flat))
    assert kept >= len(flat) - 1
    assert inputs[:kept].tolist() == flat[:kept]
    assert set(inputs[kept:]) <= {PADDING}
    labels = np.concatenate([one.labels for one in packed])
    expected = [flat[i + 1] if i + 1 < len(flat) and owner[i + 1] == owner[i] else NO_LABEL for i in range(kept)]
    assert labels[:kept].tolist() == expected
    assert set(labels[kept:]) <= {NO_LABEL}
    assert (labels != NO_LABEL).sum() == sum(len(document) - 1 for document in documents)
    for number, one in enumerate(packed):
        mine = owner[number * length : (number + 1) * length]
        # Positions count from 0 in each document, and in padding, which is one more.
        pieces = [*Counter(mine).values(), length - len(mine)]
        assert one.positions.tolist() == [place for piece in pieces for place in range(piece)]
        assert (one.labels != NO_LABEL).any()


@pytest.mark.parametrize("seed", range(6))
def test_how_documents_lie_in_shards_changes_nothing(seed: int) -> None:
    random = Random(100 + seed)
    documents = make_documents(random, 40, 200)
    whole, cut = join_documents(documents, 258, ""), in_segments(documents, [1, 0, 15, 3])
    assert (len(whole), whole.num_documents) == (len(cut), cut.num_documents)
    for one, other in zip(pack_all(whole, 64), pack_all(cut, 64), strict=True):
        assert [part.tolist() for part in one] == [part.tolist() for part in other]


def test_a_document_longer_than_a_sample_goes_on_in_the_next_with_a_fresh_context() -> None:
    stream = join_documents([array("H", [*range(20), 256])], 258, "")
    first, second, third = pack_all(stream, 8)
    assert first.input_ids.tolist() == list(range(8))
    assert first.labels.tolist() == list(range(1, 9))
    assert second.positions.tolist() == first.positions.tolist() == list(range(8))
    assert third.input_ids.tolist() == [16, 17, 18, 19, 256, 257, 257, 257]
    assert third.labels.tolist() == [17, 18, 19, 256, *[NO_LABEL] * 4]
    assert third.positions.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]


def test_documents_that_end_with_a_sample_keep_to_it() -> None:
    stream = join_documents([array("H", [*range(7), 256]), array("H", [9, 256])], 258, "")
    first, second = pack_all(stream, 8)
    assert first.labels.tolist() == [1, 2, 3, 4, 5, 6, 256, NO_LABEL]
    assert second.input_ids.tolist()[:3] == [9, 256, 257]


def test_the_last_token_alone_makes_no_sample() -> None:
    stream = join_documents([array("H", [*range(8), 256])], 258, "")
    (only,) = pack_all(stream, 8)
    assert only.labels.tolist() == [*range(1, 8), 256]
    assert count_samples(TokenStream([], 258), 8) == 0


def test_a_token_beyond_the_vocabulary_is_refused_by_the_name_of_its_file(tmp_path: Path) -> None:
    stream = TokenStream([Segment(np.array([1, 300, 2]), np.array([0, 3]), "x.tokens")], 258)
    with pytest.raises(Exception, match="a token is 300") as caught:
        stream.tokens(0, 3)
    assert "x.tokens" in str(caught.value)
