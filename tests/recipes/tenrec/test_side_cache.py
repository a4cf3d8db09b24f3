"""A side that all ranks map: the same as one in memory, found by what it follows from, made again where it is damaged."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from paceline.recipes.tenrec.generate import generate
from paceline.recipes.tenrec.side import ANY, CLICK, Side, build_side
from paceline.recipes.tenrec.side_cache import load_side
from paceline.recipes.tenrec.split import Parameters, Split, split_table

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def split() -> Split:
    return split_table(generate(users=60, items=50, rows=2000, seed=0).table, Parameters("row"))


def is_same(one: Side, other: Side) -> bool:
    names = [field.name for field in fields(Side) if field.name != "table"]
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


def test_the_same_as_in_memory(split: Split, tmp_path: Path) -> None:
    for name in ("train", "validation", "test"):
        for actions in (CLICK, ANY):
            built = build_side(split, name, actions)
            for _ in range(2):
                assert is_same(load_side(split, name, actions, tmp_path), built)
    assert len(list(tmp_path.glob("side-*"))) == 6
    assert is_same(load_side(split, "train", ANY, None), build_side(split, "train", ANY))


def test_another_split_has_another_side(split: Split, tmp_path: Path) -> None:
    load_side(split, "train", ANY, tmp_path)
    fewer = split_table(split.table, Parameters("row", max_users=30))
    assert is_same(load_side(fewer, "train", ANY, tmp_path), build_side(fewer, "train", ANY))


@pytest.mark.parametrize("has_record", [True, False])
@pytest.mark.parametrize("column", ["positives.u4", "num_negatives.u4"])
def test_a_flipped_bit_is_found(split: Split, tmp_path: Path, column: str, has_record: bool) -> None:
    load_side(split, "train", ANY, tmp_path)
    (directory,) = tmp_path.glob("side-*")
    content = bytearray((directory / column).read_bytes())
    content[5] ^= 4
    (directory / column).write_bytes(content)
    if not has_record:
        (directory / "prepared.json").write_text("{")
    assert is_same(load_side(split, "train", ANY, tmp_path), build_side(split, "train", ANY))
