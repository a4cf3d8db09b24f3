"""The ledger: one row that counts per key and round, whoever writes, and clear words where it cannot be written."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.errors import StorageError, UsageError
from paceline.sweep.ledger import AlreadyClaimed, Ledger, Order, differences, slug

ORDER = Order("a=1", 1, key="k", config="c", hardware="h", code="o", data="d", steps=10, warmup_steps=2)


def test_a_trial_is_claimed_once_whoever_asks(tmp_path: Path) -> None:
    first, second = Ledger(tmp_path / "l"), Ledger(tmp_path / "l")
    row = first.claim(ORDER)
    assert (row.status, row.driver_pid, row.directory) == ("running", os.getpid(), "trials/0001-a=1-r1")
    with pytest.raises(AlreadyClaimed):
        second.claim(ORDER)
    assert second.claim(replace(ORDER, round=2)).id == 2
    first.finish(1, "ok", "", {"samples_per_s": 3.5})
    with pytest.raises(AlreadyClaimed):
        second.claim(ORDER)
    found = second.find("k", 1)
    assert found is not None
    assert found.record == {"samples_per_s": 3.5}
    assert second.id == first.id
    first.close()
    second.close()


def test_the_database_itself_keeps_two_from_counting(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l")
    ledger.claim(ORDER)
    ledger.finish(1, "interrupted", "", None)
    ledger.claim(ORDER)
    with sqlite3.connect(tmp_path / "l") as database, pytest.raises(sqlite3.IntegrityError):
        database.execute("UPDATE trials SET status = 'ok' WHERE id = 1")
    database.close()
    ledger.close()


def test_an_interrupted_or_superseded_trial_gets_a_fresh_row_and_directory(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l")
    for number, status in enumerate(("interrupted", "failed"), 1):
        row = ledger.claim(ORDER)
        assert row.directory == f"trials/000{number}-a=1-r1"
        ledger.finish(row.id, status, "", None)
    assert [row.id for row in ledger.running()] == []
    ledger.supersede(2, "again")
    assert ledger.claim(ORDER).id == 3
    ledger.close()


def test_what_makes_a_result_of_another_kind_is_named(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l")
    row = ledger.claim(ORDER)
    assert differences(row, replace(ORDER, hardware="x", code="y")) == ["other hardware", "other code"]
    assert differences(row, replace(ORDER, steps=11)) == ["another length"]
    assert differences(row, replace(ORDER, config="x")) == ["other settings"]
    assert differences(row, replace(ORDER, key="x")) == ["another window or share of the machine"]
    ledger.close()


def test_a_file_that_is_no_ledger_or_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "garbage").write_bytes(b"this is no database" * 100)
    with pytest.raises(UsageError, match="damaged"):
        Ledger(tmp_path / "garbage")
    with pytest.raises(UsageError, match="cannot be written"):
        Ledger(tmp_path / "nowhere" / "l")


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l")
    ledger.claim(ORDER)
    ledger._database.execute("PRAGMA max_page_count=1")
    with pytest.raises(StorageError, match="the disk is full"):
        ledger.finish(1, "ok", "", {"text": "x" * 100_000})
    ledger._database.execute("PRAGMA max_page_count=100000")
    assert ledger.row(1).status == "running"
    ledger.finish(1, "ok", "", None)
    ledger.close()


def test_a_name_of_a_case_as_part_of_a_path() -> None:
    assert slug('argv=[a, "b/../c"] x=0.5') == "argv=a-b..c-x=0.5"
    assert slug("///") == "case"
    assert len(slug("x" * 300)) == 80
