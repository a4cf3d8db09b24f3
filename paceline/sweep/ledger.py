"""The ledger of a sweep: one SQLite row per trial, from the claim to the result; nothing is ever deleted from it.

    ledger = Ledger(root / "ledger.sqlite")
    row = ledger.claim(Order(case="bucket_mb=25", round=1, key="9f2c…", …))      # or AlreadyClaimed
    ledger.finish(row.id, "ok", reason="", record={…})
    ledger.find(key, round)   -> the row that counts, if there is one

A killed writer loses at most what it had not committed: its claims are found by the next one and marked as interrupted. At most one
row per key and round counts, and the database itself sees to that, whoever writes.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from paceline.errors import OccupiedError, PacelineError, StorageError, UsageError

SCHEMA = 1
RESULTS = ("ok", "failed", "oom", "diverged", "timeout", "stopped")
"""Statuses of trials that count; `stopped` was ended early by the race."""
_APART = ("interrupted", "superseded")
"""Statuses of trials that count for nothing: the driver or the operator ended it, or it was asked for anew."""
_TABLES = """
CREATE TABLE IF NOT EXISTS sweep (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS trials (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    case_name TEXT NOT NULL, round INTEGER NOT NULL, key TEXT NOT NULL,
    config TEXT NOT NULL, hardware TEXT NOT NULL, code TEXT NOT NULL, data TEXT NOT NULL,
    steps INTEGER NOT NULL, warmup_steps INTEGER NOT NULL,
    status TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '', directory TEXT NOT NULL DEFAULT '',
    driver_pid INTEGER NOT NULL, began REAL NOT NULL, ended REAL, record TEXT
);
CREATE UNIQUE INDEX IF NOT EXISTS one_that_counts ON trials (key, round) WHERE status NOT IN ('interrupted', 'superseded');
"""
_FULL = {sqlite3.SQLITE_FULL}
_FORBIDDEN = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}


@dataclass(frozen=True)
class Order:
    """A trial that is to be run, and what it is keyed by."""

    case: str
    round: int
    key: str
    config: str
    hardware: str
    code: str
    data: str
    steps: int
    warmup_steps: int


@dataclass(frozen=True)
class Row(Order):
    """One trial as the ledger has it."""

    id: int
    status: str
    reason: str
    directory: str
    """relative to the sweep's"""
    driver_pid: int
    began: float
    ended: float | None
    record: Mapping[str, Any] | None
    """what was measured; see results.py"""


def _columns(kind: type[Order]) -> list[str]:
    """Of the table, in the order of the fields; `case` is a word of SQL."""
    return ["case_name" if field.name == "case" else field.name for field in fields(kind)]


_SELECT = f"SELECT {', '.join(_columns(Row))} FROM trials"


class AlreadyClaimed(OccupiedError):
    """Somebody else runs this trial, or has run it."""


class Ledger:
    """Open for one process; every method is one transaction."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._errors():
            self._database = sqlite3.connect(path, timeout=30, isolation_level=None)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            self._database.executescript(_TABLES)
        self.id = self._remember("id", secrets.token_hex(6))
        version = int(self._remember("v", str(SCHEMA)))
        if version > SCHEMA:
            what = (
                f"this sweep was written by a newer Paceline (ledger version {version}, this one reads up to {SCHEMA})"
            )
            raise UsageError(what, str(path), "install the newer version")

    def recall(self, name: str, value: str) -> str:
        """The first value that anybody gave under this name."""
        return self._remember(name, value)

    def claim(self, order: Order) -> Row:
        """A new row for the trial, running; AlreadyClaimed where one counts already."""
        with self._transaction():
            earlier = self._find(order.key, order.round)
            if earlier is not None:
                what = f"trial {earlier.id} of {order.case}, round {order.round}, is {earlier.status}"
                do = f"wait for process {earlier.driver_pid}, or see what it does"
                raise AlreadyClaimed(what, str(self._path), do)
            columns = ", ".join([*_columns(Order), "status", "driver_pid", "began"])
            values = (*(getattr(order, field.name) for field in fields(Order)), "running", os.getpid(), time.time())
            marks = ", ".join("?" for _ in values)
            cursor = self._database.execute(f"INSERT INTO trials ({columns}) VALUES ({marks})", values)
            number = int(cursor.lastrowid or 0)
            directory = f"trials/{number:04d}-{slug(order.case)}-r{order.round}"
            self._database.execute("UPDATE trials SET directory = ? WHERE id = ?", (directory, number))
        return self.row(number)

    def finish(
        self, number: int, status: str, reason: str, record: Mapping[str, Any] | None, ended: float | None = None
    ) -> None:
        """How a running trial ended; now, where nobody knows better."""
        text = None if record is None else json.dumps(record)
        with self._transaction():
            sets = "status = ?, reason = ?, ended = ?, record = ?"
            where = "id = ? AND status = 'running'"
            values = (status, reason, time.time() if ended is None else ended, text, number)
            changed = self._database.execute(f"UPDATE trials SET {sets} WHERE {where}", values).rowcount
        assert changed == 1, f"trial {number} was not running"

    def find(self, key: str, round: int) -> Row | None:
        """The row that counts for this key and round: running, or ended with a result."""
        with self._errors():
            return self._find(key, round)

    def running(self) -> list[Row]:
        return [row for row in self.rows() if row.status == "running"]

    def supersede(self, number: int, why: str) -> None:
        """A result that is not wanted any more; the same trial can be claimed again."""
        with self._transaction():
            self._database.execute("UPDATE trials SET status = 'superseded', reason = ? WHERE id = ?", (why, number))

    def rows(self) -> list[Row]:
        with self._errors():
            return [_row(values) for values in self._database.execute(f"{_SELECT} ORDER BY id")]

    def row(self, number: int) -> Row:
        with self._errors():
            return _row(self._database.execute(f"{_SELECT} WHERE id = ?", (number,)).fetchone())

    def close(self) -> None:
        self._database.close()

    def _find(self, key: str, round: int) -> Row | None:
        where = "key = ? AND round = ? AND status NOT IN (?, ?)"
        found = self._database.execute(f"{_SELECT} WHERE {where}", (key, round, *_APART)).fetchone()
        return None if found is None else _row(found)

    def _remember(self, name: str, value: str) -> str:
        with self._transaction():
            self._database.execute("INSERT OR IGNORE INTO sweep VALUES (?, ?)", (name, value))
            return str(self._database.execute("SELECT value FROM sweep WHERE name = ?", (name,)).fetchone()[0])

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._errors():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError as error:
            raise AlreadyClaimed("another driver has this trial", str(self._path), "wait for it") from error
        except sqlite3.Error as error:
            raise self._explain(error) from error

    def _explain(self, error: sqlite3.Error) -> PacelineError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        where = str(self._path)
        if code in _FULL:
            return StorageError("the disk is full", where, "free some space; the same command goes on where it was")
        if code in _FORBIDDEN:
            return UsageError(
                f"the ledger cannot be written ({error})", where, "choose a writable place with --out DIR"
            )
        if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            return UsageError(f"the ledger is damaged ({error})", where, "restore a copy, or choose another --out DIR")
        do = "check the disk; the same command goes on where it was"
        return StorageError(f"the ledger cannot be used ({error})", where, do)


def read_rows(path: Path) -> list[Row]:
    """All trials of a ledger that somebody else may be writing; nothing is changed, and no lock is taken for long."""
    try:
        with contextlib.closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)
        ) as database:
            return [_row(values) for values in database.execute(f"{_SELECT} ORDER BY id")]
    except sqlite3.Error as error:
        do = "wait for whoever writes it, or name another directory with --out DIR"
        raise UsageError(f"the ledger cannot be read ({error})", str(path), do) from error


def differences(row: Row, order: Order) -> list[str]:
    """Why a result cannot stand for a trial of the same case, in words."""
    length = (row.steps, row.warmup_steps) != (order.steps, order.warmup_steps)
    unlike = {
        "other hardware": row.hardware != order.hardware,
        "other code": row.code != order.code,
        "other data": row.data != order.data,
        "another length": length,
        "other settings": row.config != order.config,
    }
    return [name for name, differs in unlike.items() if differs] or ["another window or share of the machine"]


def slug(case: str) -> str:
    """A case's name as part of a file name."""
    kept = "".join(letter if letter.isalnum() or letter in "=.-_" else "-" if letter == " " else "" for letter in case)
    return kept[:80].strip(".-") or "case"


def _row(values: tuple[Any, ...]) -> Row:
    named = dict(zip((field.name for field in fields(Row)), values, strict=True))
    record = named.pop("record")
    return Row(**named, record=None if record is None else json.loads(record))
