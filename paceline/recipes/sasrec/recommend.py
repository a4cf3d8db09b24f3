"""The items a trained model would show next, to a user of its data or after a history that somebody types."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from paceline.config.nearest import nearest
from paceline.errors import UsageError
from paceline.recipes.sasrec.catalogue import top_items
from paceline.recipes.sasrec.config import SasrecConfig
from paceline.recipes.sasrec.histories import Histories
from paceline.recipes.sasrec.interactions import Ints, Names
from paceline.recipes.sasrec.recommender import Recommender
from paceline.recipes.sasrec.split import Split
from paceline.recipes.sasrec.titles import Titles, read_titles
from paceline.workload import Recommendation, Recommended


def recommend(
    model: Recommender,
    split: Split,
    histories: Histories,
    config: SasrecConfig,
    *,
    user: str | None,
    history: Sequence[str] | None,
    top: int,
    keep_seen: bool,
) -> Recommendation:
    """The best `top` items; those of the history only if `keep_seen`. Users and items go by the names that the data gives them."""
    interactions = split.interactions
    placed = histories.to(model.item_weights().device)
    if user is not None:
        number = _find(user, interactions.user_names, "user")
        begin, end = interactions.offsets[number : number + 2].tolist()
        had = interactions.items[begin:end]
        batch = _cut(placed, number, begin, end, config.data.max_length)
    else:
        had = np.array([1 + _find(name, interactions.item_names, "item") for name in history or ()], np.int64)
        batch = _type_in(had, config, placed.device)
    seen = None if keep_seen else torch.from_numpy(np.unique(had))[None].to(placed.device)
    with torch.no_grad():
        num_left = interactions.num_items - (0 if seen is None else seen.shape[1])
        found = top_items(model.last_hidden(batch), model.item_weights(), min(top, num_left), seen)
    scores, items = (values[0].tolist() for values in found)
    titles = read_titles(config.data.path, config.data.format) if config.data.path else Titles()

    def name_of(item: int, score: float | None) -> Recommended:
        name = interactions.item_names[item - 1].decode()
        return Recommended(name, titles.get(name), score)

    return Recommendation(
        user,
        [name_of(item, None) for item in had.tolist()],
        [name_of(item, score) for item, score in zip(items, scores, strict=True)],
        note=titles.problem,
    )


def _cut(histories: Histories, user: int, begin: int, end: int, max_length: int) -> dict[str, torch.Tensor]:
    """A batch of one row: the user's last events."""
    length = min(end - begin, max_length)
    numbers = torch.tensor([[end - length], [length], [user]], device=histories.device)
    return {**histories.cut(numbers[0], numbers[1], numbers[2], length), "lengths": numbers[1]}


def _type_in(had: Ints, config: SasrecConfig, device: torch.device) -> dict[str, torch.Tensor]:
    """A batch of one row: a history without a user, and so without time."""
    if config.model.time:
        what = "this model looks at the time between events, and a typed history has none"
        raise UsageError(what, "--history", "use --user with a user of the data, or a model with model.time=false")
    if not len(had):
        raise UsageError("the history is empty", "--history", "give items, separated by commas: --history 1,2,3")
    latest = torch.from_numpy(had[-config.data.max_length :])[None].to(device)
    return {"items": latest, "lengths": torch.tensor([latest.shape[1]], device=device)}


def _find(name: str, names: Names, kind: str) -> int:
    """The number of a user or item by its name."""
    found = np.flatnonzero(names == name.encode())
    if len(found):
        return int(found[0])
    # Only names of about that length are compared: there may be millions.
    alike = names[abs(np.strings.str_len(names) - len(name.encode())) <= 1]
    close = nearest(name, [known.decode() for known in alike[:10_000].tolist()])
    some = ", ".join(known.decode() for known in names[:3].tolist())
    do = f"use {close}" if close else f"use one of the data's own names, such as {some}"
    raise UsageError(
        f"there is no {kind} {name!r} among the {len(names):,} of this run's data", f"--{_OPTIONS[kind]}", do
    )


_OPTIONS = {"user": "user", "item": "history"}
