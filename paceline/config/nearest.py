"""The nearest valid name to a wrong one: of a key, a recipe, a command, a choice.

nearest("train.max_step", ["train.max_steps", "run.seed"])   -> "train.max_steps"
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate most like `name`; None where nothing is like it."""
    names = list(candidates)
    lower = {candidate.lower(): candidate for candidate in names}
    found = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
    return lower[found[0]] if found else None


def nearest_key(name: str, keys: Iterable[str]) -> str | None:
    """The dotted key most like `name`, also when only its last words were given: `lr` -> train.optimizer.lr."""
    names = list(keys)
    for key in names:
        if key.endswith(f".{name}"):
            return key
    by_last: dict[str, str] = {}
    for key in names:
        by_last.setdefault(key.rpartition(".")[2], key)
    # The right word in the wrong section (train.lr) is nearer than another word of similar letters (train.epochs).
    last = name.rpartition(".")[2]
    whole = nearest(name, names)
    if last in by_last and (whole is None or _likeness(name, whole) < 0.9):
        return by_last[last]
    if whole is None and (word := nearest(last, by_last)):
        return by_last[word]
    return whole


def _likeness(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()
