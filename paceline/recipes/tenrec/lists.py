"""Lists of candidates around recorded rows that something came of: that row's item, other rows of its user, and sampled items.

    lists = draw_lists(side, rows, keys, negatives=127, recorded=63)
    lists.items      (B, 128)    the positive at a place of its own
    lists.places     (B,)        which one it is
    lists.weights    (B, 128)    1 at the positive, what each recorded one counts for, 0 at sampled ones

Recorded negatives are rows of the same user and side that nothing came of: a stretch of the user's rows from a drawn one on, so that none
comes twice. Each weighs as much as brings the user's negatives and positives, over all lists of an epoch, to the numbers they were recorded
in: actions learned with these weights are those of an impression. All is drawn from each sample's key, without a loop.

Shapes: B samples, N negatives, C = N + 1 candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from paceline.engine.draws import uniform_rows
from paceline.recipes.tenrec.side import Side
from paceline.recipes.tenrec.table import Ints

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Lists:
    items: Ints
    places: Ints
    weights: Floats


def draw_lists(side: Side, rows: npt.NDArray[np.integer], keys_B: torch.Tensor, negatives: int, recorded: int) -> Lists:
    table = side.table
    users, positives = table.user[rows], table.item[rows].astype(np.int64)
    draws = uniform_rows(keys_B, negatives + 2)
    starts_B, places_B, sampled_BN = draws[:, 0], draws[:, 1], draws[:, 2:]
    items = np.empty((len(rows), negatives + 1), np.int64)
    items[:, 0] = positives
    items[:, 1:] = _sample(sampled_BN, positives, table.num_items)
    weights = np.zeros(items.shape, np.float32)
    weights[:, 0] = 1
    if recorded:
        others, is_there = _take_recorded(side, users, starts_B, recorded)
        # The item may have been shown to the same user in vain, too: beside itself it would tie, and no model could do better.
        is_there &= others != positives[:, None]
        known = items[:, 1 : 1 + recorded]
        known[is_there] = others[is_there]
        counted = np.maximum(is_there.sum(1), 1)
        each = np.minimum(side.negatives_per_positive(users), negatives) / counted
        weights[:, 1 : 1 + recorded] = is_there * each[:, None]
    places = (places_B * (negatives + 1)).astype(np.int64)
    for table_BC in (items, weights):
        _swap(table_BC, places)
    return Lists(items, places, weights)


def mean_weight(side: Side, negatives: int) -> float:
    """Of a list of this side, on average over its positives: what the loss of its actions is divided by."""
    has_positives = np.flatnonzero(side.num_positives)
    share = np.minimum(side.negatives_per_positive(has_positives), negatives)
    return 1 + float(np.average(share, weights=side.num_positives[has_positives]))


def _sample(draws_BN: npt.NDArray[np.float64], positives_B: Ints, num_items: int) -> Ints:
    """Any item but the positive, all alike: from it on, numbers move up by one."""
    drawn = 1 + (draws_BN * (num_items - 1)).astype(np.int64)
    moved: Ints = drawn + (drawn >= positives_B[:, None])
    return moved


def _take_recorded(
    side: Side, users: npt.NDArray[np.integer], starts_B: npt.NDArray[np.float64], recorded: int
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """(B, recorded) items, and which of them are of rows that nothing came of."""
    table = side.table
    lengths = side.lengths[users].astype(np.int64)[:, None]
    steps = np.arange(recorded)
    within = ((starts_B[:, None] * lengths).astype(np.int64) + steps) % lengths
    rows = table.order[side.begins[users][:, None] + within]
    return table.item[rows].astype(np.int64), (table.actions[rows] == 0) & (steps < lengths)


def _swap(table_BC: npt.NDArray[np.generic], places_B: Ints) -> None:
    """What stands first changes places with what stands at the place."""
    each = np.arange(len(table_BC))
    first = table_BC[:, 0].copy()
    table_BC[:, 0] = table_BC[each, places_B]
    table_BC[each, places_B] = first
