"""Documents out of a parquet file, row group by row group. Needs `paceline[lm]`; no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paceline.errors import DataError
from paceline.recipes.arrow import import_arrow
from paceline.recipes.nsa.data.documents import Found, Origin

_ROWS = 256
"""read at a time: what is in memory of a row group's column beside its pages"""


def read_parquet(origin: Origin, field: str, row: int) -> Iterator[Found]:
    """The documents from a row on."""
    do = "pip install 'paceline[lm]', or give JSONL or text files"
    arrow = import_arrow("parquet", "a parquet file", origin.name, do)
    try:
        with origin.open() as stream, arrow.parquet.ParquetFile(stream) as file:
            _check_field(arrow, file.schema_arrow, field, origin.name)
            first = 0
            for group in range(file.num_row_groups):
                end = first + file.metadata.row_group(group).num_rows
                if end > row:
                    yield from _read_group(file, group, first, row, field, origin)
                first = end
    except arrow.ArrowException as error:
        what = f"this is no parquet file, or a damaged one: {str(error).splitlines()[0]}"
        raise DataError(what, origin.name, "fetch it again, or leave it out") from error


def _check_field(arrow: Any, schema: Any, field: str, name: str) -> None:
    if field not in schema.names:
        what = f"there is no column {field!r} (there are: {', '.join(schema.names)})"
        raise DataError(what, name, "name the one with the text: --field NAME")
    kind = schema.field(field).type
    if not (arrow.types.is_string(kind) or arrow.types.is_large_string(kind)):
        raise DataError(
            f"the column {field!r} holds no text, but {kind}", name, "name the one with the text: --field NAME"
        )


def _read_group(file: Any, group: int, first: int, row: int, field: str, origin: Origin) -> Iterator[Found]:
    for batch in file.iter_batches(_ROWS, row_groups=[group], columns=[field], use_threads=False):
        for value in batch.column(0):
            if first >= row:
                try:
                    text, fault = value.as_py() or "", ""
                except UnicodeDecodeError:
                    text, fault = None, "this row is not UTF-8 text"
                yield Found(text, f"{origin.name}, row {first + 1}", first + 1, first + 1, fault)
            first += 1
