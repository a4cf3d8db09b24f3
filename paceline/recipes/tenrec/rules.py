"""What may stand in each column of a file in the Tenrec schema. No torch, no numpy.

explain_line("7,abc,1,…", names)      -> "item_id is 'abc', which is no whole number"
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.recipes.tenrec.columns import ACTIONS, COLUMNS, HISTORY_COLUMNS, MISSING

MOST_ID = 2**27 - 1
"""Larger ids are refused: the table that finds an id's number has an entry for each possible one."""
_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
_SHOWN = 40


@dataclass(frozen=True)
class Rule:
    least: int = 0
    most: int = 2**63 - 1
    is_required: bool = False


RULES = (
    {"user_id": Rule(0, MOST_ID, True), "item_id": Rule(1, MOST_ID, True)}
    | {name: Rule(0, 1) for name in ACTIONS}
    | {"video_category": Rule(0, 65_534), "watching_times": Rule(), "gender": Rule(0, 254), "age": Rule(0, 254)}
    | {name: Rule(0, MOST_ID) for name in HISTORY_COLUMNS}
)
assert tuple(RULES) == COLUMNS


def explain_value(name: str, value: int | None) -> str:
    """What is wrong with a number, or with none; empty: nothing."""
    rule = RULES[name]
    if value is None:
        return f"{name} is missing" if rule.is_required else ""
    if rule.least <= value <= rule.most:
        return ""
    return f"{name} is {value}, which is not within {rule.least} … {rule.most}"


def explain_line(line: str, names: Sequence[str]) -> str:
    """What is wrong with a line of a CSV file whose columns are `names`; empty: nothing."""
    fields = [field.strip().strip('"') for field in line.split(",")]
    if len(fields) != len(names):
        return f"the line has {len(fields)} columns, and the header {len(names)}"
    for name, word in zip(names, fields, strict=True):
        if name not in RULES:
            continue
        if word not in ("", MISSING) and not _WHOLE.fullmatch(word):
            return f"{name} is {word[:_SHOWN]!r}, which is no whole number"
        wrong = explain_value(name, None if word in ("", MISSING) else int(word))
        if wrong:
            return wrong
    return ""
