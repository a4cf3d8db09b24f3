"""`paceline prepare tenrec`: from a CSV or parquet file to the columns that all ranks map; streamed, so that memory does not grow with rows.

Killed, it begins anew: at a million rows a second and more that costs less than the record of where it was. Until the record is
written, which is last, there is no data set.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import DataError, OccupiedError
from paceline.files import storage_errors
from paceline.recipes.arrow import import_arrow
from paceline.recipes.prepared import (
    Making,
    Prepared,
    check_inputs,
    check_made,
    check_owner,
    differences,
    read_prepared,
    taking,
)
from paceline.recipes.progress import Progress, Report
from paceline.recipes.tenrec.batch import Batch
from paceline.recipes.tenrec.csv_input import CsvInput
from paceline.recipes.tenrec.numbering import Numbering
from paceline.recipes.tenrec.parquet_input import ParquetInput
from paceline.recipes.tenrec.request import Request
from paceline.recipes.tenrec.said import Said
from paceline.recipes.tenrec.source import FAMILY, NAME, VERSION
from paceline.recipes.tenrec.stored import TableWriter
from paceline.recipes.tenrec.table import Users

_MOST_ROWS = 2**32 - 1


@dataclass(frozen=True)
class Preparation:
    """What came of it."""

    directory: Path
    prepared: Prepared
    is_new: bool
    """False: everything was there already"""
    notes: list[str]


def prepare(request: Request, report: Report) -> Preparation:
    request.check()
    module = "csv" if request.input.suffix.lower() == ".csv" else "parquet"
    arrow = import_arrow(module, "a file in the Tenrec schema", str(request.input), "pip install 'paceline[tenrec]'")
    import_arrow("compute", "a file in the Tenrec schema", str(request.input), "pip install 'paceline[tenrec]'")
    with taking(request.output):
        record = read_prepared(request.output)
        check_owner(request.output, record, FAMILY, NAME)
        notes = _find_faults(request, record, report)
        if record is not None and not notes:
            return Preparation(request.output, record, False, [])
        source = CsvInput(arrow, request.input) if module == "csv" else ParquetInput(arrow, request.input)
        with storage_errors(request.output), Making(request.output, record) as making:
            prepared = _make(request, source, making, record, report)
        return Preparation(request.output, prepared, True, notes)


def _find_faults(request: Request, record: Prepared | None, report: Report) -> list[str]:
    """Why what is there has to be made again; OccupiedError where it is of other rows, or of another part of them."""
    if record is None:
        return []
    differ = differences(record.parameters, request.parameters())
    if differ:
        do = "choose another place with --output DIR"
        raise OccupiedError(f"this directory was prepared otherwise: {', '.join(differ)}", str(request.output), do)
    check_inputs(request.output, record, {"rows": _digest(request.input, report)}, str(request.input))
    if record.version != VERSION:
        return [f"made again: version {record.version} of this step made it, this is {VERSION}"]
    report(Progress("verifying what is there", 0, 0))
    return [f"made again: {fault}" for fault in check_made(request.output, record)]


def _make(
    request: Request, source: CsvInput | ParquetInput, making: Making, record: Prepared | None, report: Report
) -> Prepared:
    rows = _Rows(making, request.max_users)

    def tell(used: int) -> None:
        report(Progress("preparing", used, source.num_bytes, rows.num_seen, "rows"))

    # Closed here: left to the collector, threads that parse would end where a second Ctrl-C is nobody's exception, but a traceback.
    with contextlib.closing(source.read(tell)) as batches:
        for batch in batches:
            rows.add(batch)
            if rows.num_seen > _MOST_ROWS:
                what = f"more than {_MOST_ROWS:,} rows"
                raise DataError(what, str(request.input), "prepare a part of them: --max-users N")
    if not rows.num_seen:
        raise DataError("the file holds no rows", str(request.input), "give a file with rows")
    inputs = {"rows": source.digest}
    check_inputs(request.output, record, inputs, str(request.input))
    report(Progress("grouping by user", 0, 0))
    counts = rows.finish()
    return making.finish(
        family=FAMILY,
        name=NAME,
        version=VERSION,
        inputs=inputs,
        source={"from": str(request.input)},
        counts=counts,
        parameters=request.parameters(),
    )


class _Rows:
    """Numbers the rows and hands them to the writer."""

    def __init__(self, making: Making, max_users: int | None) -> None:
        self._writer = TableWriter(making)
        self._users, self._items = Numbering(0, max_users), Numbering(1)
        self._gender, self._age, self._category = Said(np.uint8), Said(np.uint8), Said(np.uint16)
        self.num_seen = self._num_unsaid = 0

    def add(self, batch: Batch) -> None:
        self.num_seen += len(batch.user)
        self._num_unsaid += batch.num_unsaid
        user = self._users.number(batch.user)
        items, actions, watching, category = batch.items, batch.actions, batch.watching, batch.category
        gender, age = batch.gender, batch.age
        kept = user >= 0
        if not kept.all():
            user, items, actions, watching = user[kept], items[kept], actions[kept], watching[kept]
            category, gender, age = category[kept], gender[kept], age[kept]
        numbers = self._items.number(items.reshape(-1)).reshape(items.shape)
        item, history = numbers[:, 0], numbers[:, 1:]
        self._gender.add(user, gender, self._users.count)
        self._age.add(user, age, self._users.count)
        self._category.add(item, category, 1 + self._items.count)
        unsigned = user.astype(np.uint32), item.astype(np.uint32)
        self._writer.add(*unsigned, actions, watching, history.astype(np.uint32))

    def finish(self) -> dict[str, Any]:
        users = Users(self._gender.values, self._age.values, self._users.names())
        names = np.concatenate(([0], self._items.names()))
        self._writer.finish(users, self._category.values, names)
        written = self._writer
        return {
            "rows": written.num_rows,
            "rows_left_out": self.num_seen - written.num_rows,
            "users": self._users.count,
            "items": self._items.count,
            "clicks": written.num_clicks,
            "rows_without_history": written.num_without_history,
            "rows_with_item_in_history": written.num_in_history,
            "actions_not_said": self._num_unsaid,
            "rows_of_another_gender_or_age": self._gender.num_otherwise + self._age.num_otherwise,
            "rows_of_another_category": self._category.num_otherwise,
        }


def _digest(file: Path, report: Report) -> str:
    digest, done, size = hashlib.sha256(), 0, file.stat().st_size
    with open(file, "rb") as stream:
        while block := stream.read(1 << 24):
            digest.update(block)
            done += len(block)
            report(Progress("comparing with what is there", done, size))
    return digest.hexdigest()
