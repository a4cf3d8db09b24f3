"""What a tenrec configuration may say about its rows, its split and what is drawn from them. No torch, no numpy.

paceline train tenrec data.path=data/tenrec data.max_users=50000 data.negatives=63
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from paceline.config import sections
from paceline.config.sections import IDENTITY, key


class Data(sections.Data):
    # The path is free: the digest of the content (Recipe.identify_data) identifies the data.
    path: str | None = key(
        None, "Directory that `paceline prepare tenrec` wrote; null: generated rows of the same schema.", min_length=1
    )
    users: int = key(3000, "Generated data: users.", IDENTITY, ge=10, lt=2**31)
    items: int = key(1000, "Generated data: items.", IDENTITY, ge=50, lt=2**31)
    rows: int = key(160_000, "Generated data: impressions.", IDENTITY, ge=100, lt=2**31)
    seed: int = key(
        0,
        "Generated data and the split: their seed, apart from run.seed, so that several seeds train on the same.",
        IDENTITY,
        ge=0,
        lt=2**63,
    )
    cache: str = key(
        "data/tenrec-generated",
        "Generated data: where more than a million rows are kept, for all ranks to map.",
        min_length=1,
    )
    max_users: int | None = key(
        None, "Only the first so many users of the prepared rows; null: all of them.", IDENTITY, ge=1
    )
    split: Literal["user", "row"] = key(
        "row",
        "What is held out: all rows of some users; or of every user the last rows, by the order of the source.",
        IDENTITY,
    )
    negatives: int = key(
        127, "For the ranker: candidates beside the positive one in training, recorded and sampled.", IDENTITY, ge=1
    )
    recorded: float = key(
        0.5,
        "For the ranker: at most this share of them are rows of the same user without an action; the rest is sampled.",
        IDENTITY,
        ge=0,
        le=1,
    )

    @property
    def num_recorded(self) -> int:
        """At most so many of the negatives are recorded ones."""
        return int(self.recorded * self.negatives)


def find_idle_data(data: Data) -> Iterator[tuple[str, str]]:
    if data.path is not None:
        yield from ((f"data.{name}", "data.path is given") for name in ("users", "items", "rows", "cache"))
    else:
        yield "data.max_users", "generated data has data.users"
