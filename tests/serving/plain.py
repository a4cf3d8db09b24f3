"""The same as paceline/serving says it does, one candidate after the other: slow, plain, and written from the sentences, not from the code."""

from __future__ import annotations

import math

import numpy as np

from paceline.serving.candidates import Candidates
from paceline.serving.query import Query


def rows_of(candidates: Candidates) -> list[dict]:
    return [{name: column[row] for name, column in candidates.columns.items()} for row in range(len(candidates))]


def duplicates(query: Query, candidates: Candidates) -> list[bool]:
    met: set[int] = set()
    keep = []
    for row in rows_of(candidates):
        keep.append(row["item"] not in met)
        met.add(row["item"])
    return keep


def age(query: Query, candidates: Candidates, most_s: float) -> list[bool]:
    return [math.isnan(row.get("age_s", math.nan)) or row["age_s"] <= most_s for row in rows_of(candidates)]


def seen(query: Query, candidates: Candidates) -> list[bool]:
    return [row["item"] not in query.seen.tolist() for row in rows_of(candidates)]


def blocked(query: Query, candidates: Candidates) -> list[bool]:
    keep = []
    for row in rows_of(candidates):
        is_blocked = row["item"] in query.blocked_items.tolist()
        is_blocked |= "author" in row and row["author"] in query.blocked_authors.tolist()
        is_blocked |= "category" in row and row["category"] in query.blocked_categories.tolist()
        keep.append(not is_blocked)
    return keep


def muted_words(query: Query, candidates: Candidates, titles: dict[int, str]) -> list[bool]:
    muted = {word.lower() for word in query.muted_words}
    return [not muted & set(titles[row["item"]].lower().split()) for row in rows_of(candidates)]


def own_items(query: Query, candidates: Candidates) -> list[bool]:
    keep = []
    for row in rows_of(candidates):
        is_own = row["item"] in query.own_items.tolist()
        is_own |= query.own_author is not None and "author" in row and row["author"] == query.own_author
        keep.append(not is_own)
    return keep


def diversity(candidates: Candidates, column: str, decay: float, floor: float) -> list[float]:
    rows = rows_of(candidates)
    scores = [0.0] * len(rows)
    had: dict[int, int] = {}
    for number in sorted(range(len(rows)), key=lambda number: -rows[number]["score"]):
        group, score = rows[number][column], float(rows[number]["score"])
        share = floor + (1 - floor) * decay ** had.get(group, 0)
        scores[number] = score * share if score >= 0 else score - (1 - share) * -score
        had[group] = had.get(group, 0) + 1
    return scores


def best(candidates: Candidates, top: int) -> list[int]:
    return sorted(range(len(candidates)), key=lambda row: (-candidates.score[row], row))[:top]


def draw(seed: int, *, absent: tuple[str, ...] = ()) -> tuple[Query, Candidates, dict[int, str]]:
    """A random request: its candidates repeat, tie, and lie in and outside of every set; and the titles of the items."""
    random = np.random.default_rng(seed)
    count = int(random.choice((0, 1, 2, 7, 200, 700)))
    # Few ids collide often, some are large; beyond 2**25 the marks are not used.
    num_items = int(random.choice((3, 50, 5000, 70_000, (1 << 25) + 999)))
    items = random.integers(0, num_items, count)
    # Few different scores: ties, zeros of both signs, negative ones.
    levels = np.concatenate((random.normal(size=5), [0.0, -0.0])).astype(np.float32)
    score = random.choice(levels, count) if random.random() < 0.5 else random.normal(size=count).astype(np.float32)
    ages = np.where(random.random(count) < 0.1, np.nan, random.integers(0, 9, count))
    words = ("red", "blue", "green", "grey", "new")
    titles = {int(item): " ".join(random.choice(words, random.integers(0, 4))) for item in set(items.tolist())}
    columns = {
        "category": random.integers(0, random.choice((1, 4, 300)), count).astype(np.uint16),
        "author": random.integers(0, random.choice((2, 100, 1 << 31)), count),
        "age_s": ages,
    }

    def some(values: int, most: int) -> np.ndarray:
        return random.integers(0, values, random.integers(0, most))

    query = Query(
        top=int(random.integers(1, 20)),
        seen=np.concatenate((some(num_items, 40), random.permutation(items)[: count // 9])),
        blocked_items=some(num_items, 5),
        blocked_authors=some(100, 9),
        blocked_categories=some(4, 3),
        muted_words=tuple(random.choice(("RED", "Grey", "none such"), random.integers(0, 3))),
        own_items=some(num_items, 4),
        own_author=int(random.integers(0, 3)) if random.random() < 0.7 else None,
    )
    kept = {name: column for name, column in columns.items() if name not in absent}
    return query, Candidates.build(items, score, **kept), titles
