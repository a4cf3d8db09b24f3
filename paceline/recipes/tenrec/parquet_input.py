"""Rows out of a parquet file in the Tenrec schema, a batch at a time; what cannot be used is named with its row."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from paceline.errors import DataError
from paceline.files import sha256_of
from paceline.recipes.tenrec.batch import BadRow, Batch, build_batch
from paceline.recipes.tenrec.columns import COLUMNS, MISSING
from paceline.recipes.tenrec.csv_input import check_names

_ROWS = 1 << 17
_DO = "correct or remove the row, or give the original file"


class ParquetInput:
    def __init__(self, arrow: Any, file: Path) -> None:
        self._arrow, self._file = arrow, file
        self.num_bytes = file.stat().st_size

    @functools.cached_property
    def digest(self) -> str:
        return sha256_of(self._file)

    def read(self, done: Callable[[int], None]) -> Generator[Batch, None, None]:
        """`done` is told how many bytes were used, as far as rows can tell."""
        arrow, first = self._arrow, 0
        try:
            with arrow.parquet.ParquetFile(self._file) as file:
                check_names(list(file.schema_arrow.names), str(self._file))
                for found in file.iter_batches(_ROWS, columns=list(COLUMNS)):
                    yield self._convert(found, first)
                    first += found.num_rows
                    done(self.num_bytes * first // file.metadata.num_rows)
        except (arrow.ArrowException, OSError) as error:  # a damaged page is an OSError there
            what = f"this is no parquet file, or a damaged one: {str(error).splitlines()[0]}"
            raise DataError(what, str(self._file), "fetch it again") from error

    def _convert(self, found: Any, first: int) -> Batch:
        arrow = self._arrow
        columns = []
        for name in COLUMNS:
            column = found.column(name)
            try:
                columns.append(_to_integers(arrow, column))
            except arrow.ArrowException:
                row = _find_bad(arrow, column)
                what = f"{name} is {column[row].as_py()!r}, which is no whole number"
                raise DataError(what, f"{self._file}, row {first + row + 1}", _DO) from None
        try:
            return build_batch(arrow, arrow.table(columns, names=list(COLUMNS)))
        except BadRow as error:
            raise DataError(error.reason, f"{self._file}, row {first + error.row + 1}", _DO) from None


def _to_integers(arrow: Any, column: Any) -> Any:
    """Also from text, from booleans, and from floating point where every value is whole; NaN is missing."""
    kind, compute = column.type, arrow.compute
    if arrow.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    if arrow.types.is_string(kind) or arrow.types.is_large_string(kind):
        is_missing = compute.is_in(column, value_set=arrow.array(["", MISSING], kind))
        column = compute.if_else(is_missing, arrow.scalar(None, kind), column)
    elif arrow.types.is_floating(kind):
        column = compute.if_else(compute.is_nan(column), arrow.scalar(None, kind), column)
    return compute.cast(column, arrow.int64())


def _find_bad(arrow: Any, column: Any) -> int:
    """The first row that is no whole number: by halves, each of which can be asked."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _to_integers(arrow, column.slice(low, middle - low))
            low = middle
        except arrow.ArrowException:
            high = middle
    return low
