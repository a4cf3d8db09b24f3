from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paceline.errors import DataError
from paceline.recipes.prepared import RECORD, Making
from paceline.recipes.tenrec.generate import generate
from paceline.recipes.tenrec.split import KINDS, SIDES, Kind, Parameters, split_table
from paceline.recipes.tenrec.split_cache import load_split
from paceline.recipes.tenrec.table import Table, group_rows

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def table() -> Table:
    """Rows of 300 users in any order."""
    made = generate(300, 40, 9000, seed=2).table
    order = np.random.default_rng(0).permutation(made.num_rows)
    user = made.user[order]
    offsets, by_user = group_rows(user, made.num_users)
    columns = {name: getattr(made, name)[order] for name in ("item", "actions", "watching", "history")}
    return replace(made, user=user, offsets=offsets, order=by_user, **columns)


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_on_one_side(table: Table, kind: Kind) -> None:
    split = split_table(table, Parameters(kind))
    rows = np.concatenate([split.rows(side) for side in SIDES])
    assert np.array_equal(np.sort(rows), np.arange(table.num_rows))
    for side in SIDES[1:]:
        assert 0.05 < len(split.rows(side)) / table.num_rows < 0.15
    for side in SIDES:
        assert np.all(np.diff(split.rows(side).astype(np.int64)) > 0)


def test_by_user_nobody_is_on_two_sides_and_others_do_not_matter(table: Table) -> None:
    split = split_table(table, Parameters("user"))
    users = [set(table.user[split.rows(side)].tolist()) for side in SIDES]
    assert not users[0] & users[1]
    assert not users[0] & users[2]
    assert not users[1] & users[2]
    fewer = split_table(table, Parameters("user", max_users=200))
    for side in SIDES:
        rows = split.rows(side)
        assert np.array_equal(fewer.rows(side), rows[table.user[rows] < 200])
    other = split_table(table, Parameters("user", seed=2**40 + 1))
    assert set(table.user[other.test].tolist()) != users[2]


def test_any_seed_that_can_be_given_holds_out_users_of_its_own(table: Table) -> None:
    held = {tuple(split_table(table, Parameters("user", seed=seed)).test.tolist()) for seed in (0, 5, 2**63 - 1)}
    assert len(held) == 3


def test_by_row_each_user_is_trained_on_before_it_is_tested(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.recipes.tenrec.split._PIECE", 1000)
    split = split_table(table, Parameters("row", validation_share=0.2, test_share=0.1, max_users=250))
    side_of = np.full(table.num_rows, 3)
    for number, side in enumerate(SIDES):
        side_of[split.rows(side)] = number
    for user in range(table.num_users):
        rows = [row for row in range(table.num_rows) if table.user[row] == user] if user < 20 else table.rows_of(user)
        sides, count = side_of[rows].tolist(), len(rows)
        tests, validations = int(count * 0.1), int(count * 0.2)
        plain = [0] * (count - tests - validations) + [1] * validations + [2] * tests
        assert sides == (plain if user < 250 else [3] * count)


def test_counts_are_of_training_rows_alone(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.recipes.tenrec.split._PIECE", 1000)
    split = split_table(table, Parameters("row"))
    exposures, clicks = np.zeros(41, np.int64), np.zeros(41, np.int64)
    for row in split.train:
        exposures[table.item[row]] += 1
        clicks[table.item[row]] += table.actions[row] & 1
    assert np.array_equal(split.item_counts()[0], exposures)
    assert np.array_equal(split.item_counts()[1], clicks)
    assert not np.array_equal(exposures, table.items.exposures)


def test_a_side_without_rows_is_refused() -> None:
    tiny = generate(1, 5, 12, seed=0).table
    with pytest.raises(DataError, match="no row is for"):
        split_table(tiny, Parameters("user"))
    split = split_table(tiny, Parameters("row", validation_share=0.0))
    assert [len(split.rows(side)) for side in SIDES] == [11, 0, 1]


def kept(directory: Path) -> list[Path]:
    return sorted(directory.glob("split-*"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_kept_split_is_what_was_made(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    parameters = Parameters(kind)
    made = split_table(table, parameters)
    load_split(table, parameters, tmp_path)
    monkeypatch.setattr(Making, "finish", None)  # it is not made again
    found = load_split(table, parameters, tmp_path)
    for side in SIDES:
        assert np.array_equal(found.rows(side), made.rows(side))
        assert not found.rows(side).flags.writeable
    assert len(kept(tmp_path)) == 1


def test_each_parameter_and_each_table_has_its_own(table: Table, tmp_path: Path) -> None:
    base = Parameters("row")
    others = [
        replace(base, kind="user"),
        replace(base, validation_share=0.2),
        replace(base, test_share=0.2),
        replace(base, seed=1),
        replace(base, max_users=100),
    ]
    for number, parameters in enumerate([base, *others], 1):
        found = load_split(table, parameters, tmp_path)
        assert np.array_equal(found.test, split_table(table, parameters).test)
        assert len(kept(tmp_path)) == number
    load_split(replace(table, identity="another"), base, tmp_path)
    assert len(kept(tmp_path)) == 7


@pytest.mark.parametrize("damage", ["bit", "missing", "version", "parameters", "table", "record", "both"])
def test_a_damaged_one_or_one_of_something_else_is_made_again(table: Table, tmp_path: Path, damage: str) -> None:
    parameters = Parameters("row")
    load_split(table, parameters, tmp_path)
    (directory,) = kept(tmp_path)
    file, record = directory / "test.u4", directory / RECORD
    whole = file.read_bytes()
    if damage in ("bit", "both"):
        file.write_bytes(bytes([whole[0] ^ 128]) + whole[1:])
    if damage == "missing":
        file.unlink()
    elif damage != "bit":
        said = json.loads(record.read_text())
        del said["seal"]
        said["version"] -= damage == "version"
        said["parameters"] |= {"max_users": 5} if damage == "parameters" else {}
        said["inputs"] |= {"table": "other"} if damage == "table" else {}
        record.write_text("{" if damage in ("record", "both") else json.dumps(said))
    found = load_split(table, parameters, tmp_path)
    assert file.read_bytes() == whole
    assert np.array_equal(found.test, split_table(table, parameters).test)
    assert json.loads(record.read_text())["parameters"]["max_users"] is None


def test_without_a_place_it_is_made_in_memory(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(load_split(table, Parameters(), None).test)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert len(load_split(table, Parameters(), tmp_path).test)
    assert kept(tmp_path) == []
