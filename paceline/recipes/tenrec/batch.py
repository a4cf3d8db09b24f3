"""Some rows of a source, checked and in numpy: what the readers of CSV and parquet give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.recipes.tenrec.columns import ACTIONS, HISTORY_COLUMNS
from paceline.recipes.tenrec.rules import RULES, explain_value
from paceline.recipes.tenrec.table import Ints, UInt8s, UInt16s

_MOST_WATCHING = np.iinfo(np.uint16).max


@dataclass(frozen=True, eq=False)
class Batch:
    """Ids as in the source; gender, age and category plus 1, and 0 for what is not said."""

    user: Ints
    items: Ints
    """(rows, 11): the item shown, and the history; 0 where there is none"""
    actions: UInt8s
    watching: UInt16s
    category: UInt16s
    gender: UInt8s
    age: UInt8s
    num_unsaid: int
    """actions that the source does not say: taken as not done"""


class BadRow(Exception):
    """The first row, counted from 0, whose column may not hold what it holds."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row, self.reason = row, reason


def build_batch(arrow: Any, found: Any) -> Batch:
    """From an arrow table with the columns of the schema as 64-bit integers; BadRow for what RULES do not allow."""
    values, num_missing = {}, {}
    for name in RULES:
        values[name], num_missing[name] = _read(arrow, found.column(name), name)
    items = np.stack([values["item_id"], *(values[name] for name in HISTORY_COLUMNS)], axis=1)
    actions = np.zeros(len(items), np.uint8)
    for bit, name in enumerate(ACTIONS):
        actions |= (np.maximum(values[name], 0) << bit).astype(np.uint8)
    return Batch(
        user=values["user_id"],
        items=np.maximum(items, 0, out=items),
        actions=actions,
        watching=np.clip(values["watching_times"], 0, _MOST_WATCHING).astype(np.uint16),
        category=(values["video_category"] + 1).astype(np.uint16),
        gender=(values["gender"] + 1).astype(np.uint8),
        age=(values["age"] + 1).astype(np.uint8),
        num_unsaid=sum(num_missing[name] for name in ACTIONS),
    )


def _read(arrow: Any, column: Any, name: str) -> tuple[Ints, int]:
    """A column with -1 where it says nothing, and how often that is."""
    rule, missing = RULES[name], column.null_count
    values: Ints = (arrow.compute.fill_null(column, -1) if missing else column).to_numpy()
    if len(values) and (values.min() < (-1 if missing else rule.least) or values.max() > rule.most or missing):
        is_said = arrow.compute.is_valid(column).to_numpy(zero_copy_only=False) if missing else np.True_
        wrong = is_said & ((values < rule.least) | (values > rule.most))
        if rule.is_required:
            wrong |= ~is_said
        if wrong.any():
            row = int(wrong.argmax())
            raise BadRow(row, explain_value(name, column[row].as_py()))
    return values, missing
