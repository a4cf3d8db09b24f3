"""The section `data` of a language model's configuration. No torch, no numpy.

paceline train nsa data.source=shards data.path=data/fineweb data.length=2048
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from paceline.config import sections
from paceline.config.sections import IDENTITY, key
from paceline.errors import Problem

CORPUS_VERSION = 1
"""Raised whenever corpus.py writes other text from the same numbers."""
NEEDLE_VERSION = 1
"""Likewise for needle.py."""
SYNTHETIC_VERSION = 1
"""Likewise for synthetic.py."""


class Data(sections.Data):
    source: Literal["text", "shards", "needle", "synthetic"] = key(
        "text",
        "text: a small generated corpus; shards: what `paceline prepare fineweb` wrote; needle: a value to be found far back in long "
        "filler; synthetic: random tokens, for throughput only: their losses mean nothing.",
        IDENTITY,
    )
    # Path and tokenizer are free: the digest of the tokens (identify_data) identifies them.
    path: str | None = key(None, "For shards: their directory.", min_length=1)
    length: int = key(1024, "Tokens of a sample: what one row of a batch holds.", IDENTITY, ge=8)
    tokenizer: str | None = key(
        None,
        "bytes, a tokenizer.json, or a directory with vocab.json and merges.txt; null: the shards' own, or bytes.",
        min_length=1,
    )
    seed: int = key(
        0,
        "What is generated: its seed, apart from run.seed, so that several seeds train on the same data.",
        IDENTITY,
        ge=0,
    )
    documents: int = key(4000, "For text: documents of the corpus, both sides of its split together.", IDENTITY, ge=50)
    samples: int = key(4096, "For needle and synthetic: samples of an epoch.", IDENTITY, ge=1)
    vocabulary: int = key(
        50_304, "For synthetic: how many tokens there are to draw from.", IDENTITY, ge=2, le=2**31 - 1
    )
    needle_pairs: int = key(
        4, "For needle: keys with their values in a sample; each is asked for once.", IDENTITY, ge=1, le=64
    )
    needle_tokens: int = key(2, "For needle: tokens of a value.", IDENTITY, ge=1, le=64)
    needle_distance: int = key(
        512,
        "For needle: at least so many tokens between the last planted value and the first question; at least the sliding window, "
        "and the local blocks, or they are found without a search.",
        IDENTITY,
        ge=0,
    )
    needle_first: int = key(
        64,
        "For needle: nothing is planted before this position; at least the first block, which is always attended to.",
        IDENTITY,
        ge=0,
    )


def check_data(data: Data, window: int | None = None, block: int | None = None) -> Iterator[Problem]:
    """What types alone cannot see; `window` and `block` are the model's sliding window and the width of a selected block, if it has any."""
    if data.source == "shards" and data.path is None:
        do = "set data.path to what `paceline prepare fineweb` wrote, or data.source=text"
        yield Problem("data.source=shards without data.path", "data.source and data.path", do)
    if data.source != "needle":
        return
    room = needle_room(data)
    planted = data.needle_pairs * (data.needle_tokens + 2)
    if room < planted:
        yield Problem(
            f"data.length={data.length} has no room for the needles: {data.needle_first} first tokens, {planted} of "
            f"{data.needle_pairs} planted values, {data.needle_distance} between, {planted} of their questions",
            "data.length, data.needle_pairs, data.needle_tokens, data.needle_first and data.needle_distance",
            f"set data.length={data.length + planted - room} or more, or plant less",
        )
    far_enough = f"set data.needle_distance={max(window or 0, 2 * (block or 0))}"
    if window is not None and data.needle_distance < window:
        what = f"data.needle_distance={data.needle_distance} lies within the sliding window of {window}: nothing has to be searched"
        yield Problem(what, "data.needle_distance and model.window", far_enough)
    if block is not None and data.needle_first < block:
        what = (
            f"data.needle_first={data.needle_first} lies within the first block of {block}, which is always attended to"
        )
        yield Problem(what, "data.needle_first and model.selection_block", f"set data.needle_first={block}")
    if block is not None and data.needle_distance < 2 * block:
        what = f"data.needle_distance={data.needle_distance} lies within the two local blocks of {block}, which are always attended to"
        yield Problem(what, "data.needle_distance and model.selection_block", far_enough)


def needle_room(data: Data) -> int:
    """Positions in which something may be planted: after the first ones, and far enough before the questions."""
    asked = data.needle_pairs * (data.needle_tokens + 2)
    return data.length - data.needle_first - data.needle_distance - asked


_USED = {
    "text": {"tokenizer", "seed", "documents"},
    "shards": {"path", "tokenizer"},
    "needle": {"seed", "samples", "needle_pairs", "needle_tokens", "needle_distance", "needle_first"},
    "synthetic": {"seed", "samples", "vocabulary"},
}


def find_idle_data(data: Data) -> Iterator[tuple[str, str]]:
    """(key, reason) of the keys that change nothing with this source."""
    own = set().union(*_USED.values())
    for name in Data.model_fields:
        if name in own and name not in _USED[data.source]:
            yield f"data.{name}", f"data.source={data.source}"
