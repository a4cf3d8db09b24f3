"""Small files in the Tenrec schema, and a plain reading of them to compare with."""

from __future__ import annotations

import random
from pathlib import Path

from paceline.recipes.tenrec.columns import ACTIONS, COLUMNS, HISTORY_COLUMNS

Row = dict[str, int | None]


def draw_rows(count: int, seed: int = 0, users: int = 9, items: int = 30) -> list[Row]:
    """Users in any order, large ids, and something missing wherever that is allowed."""
    draw = random.Random(seed)
    rows: list[Row] = []
    for _ in range(count):
        user, item = draw.randrange(users), 1 + draw.randrange(items)
        row: Row = {"user_id": 1000 * user, "item_id": 70_000 + 7 * item}
        row |= {name: int(draw.random() < 0.3) for name in ACTIONS}
        row |= {"video_category": item % 5 if item % 6 else None, "watching_times": draw.choice([0, 3, 70_000, None])}
        row |= {"gender": user % 3 if user % 4 else None, "age": user % 8}
        had = draw.randrange(11)
        places = [70_000 + 7 * (1 + draw.randrange(2 * items)) if place < had else 0 for place in range(10)]
        row |= dict(zip(HISTORY_COLUMNS, places, strict=True))
        rows.append(row)
    return rows


def write_csv(file: Path, rows: list[Row], names: tuple[str, ...] = COLUMNS, end: str = "\n") -> Path:
    lines = [",".join(names)]
    lines += [",".join("\\N" if row.get(name) is None else str(row[name]) for name in names) for row in rows]
    file.write_bytes((end.join(lines) + end).encode())
    return file


def first_seen(values: list[int]) -> dict[int, int]:
    """Each value's number in the order of first occurrence, from 0."""
    return {value: number for number, value in enumerate(dict.fromkeys(values))}
