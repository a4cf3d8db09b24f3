"""Rows out of a CSV file in the Tenrec schema, a block of whole lines at a time, parsed by several threads and given in order.

What cannot be used is named with its line. Columns may stand in any order, and others beside them are passed over.
"""

from __future__ import annotations

import csv
import hashlib
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from paceline.errors import DataError
from paceline.recipes.tenrec.batch import BadRow, Batch, build_batch
from paceline.recipes.tenrec.columns import COLUMNS, MISSING
from paceline.recipes.tenrec.rules import explain_line

_BLOCK_BYTES = 1 << 23
_THREADS = 2
_AHEAD = 3
"""blocks that are parsed while one is used: memory is a few of them"""
_LONGEST_HEADER = 1 << 16
_DO = "correct or remove the line, or give the original file"


@dataclass(frozen=True)
class _Block:
    content: bytes
    first_line: int


class CsvInput:
    """Read once, from the beginning; `digest` is that of the whole file when all rows were given."""

    def __init__(self, arrow: Any, file: Path) -> None:
        self._arrow, self._file = arrow, file
        self._digest = hashlib.sha256()
        self._names: list[str] = []
        self.num_bytes = file.stat().st_size

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def read(self, done: Callable[[int], None]) -> Generator[Batch, None, None]:
        """`done` is told how many bytes were used."""
        used = 0
        with open(self._file, "rb") as stream, ThreadPoolExecutor(_THREADS) as pool:
            waiting: deque[tuple[int, Future[Batch]]] = deque()
            try:
                for block in self._blocks(stream):
                    waiting.append((len(block.content), pool.submit(self._parse, block)))
                    if len(waiting) > _AHEAD:
                        size, batch = waiting.popleft()
                        yield batch.result()
                        used += size
                        done(used)
                while waiting:
                    size, batch = waiting.popleft()
                    yield batch.result()
                    used += size
                    done(used)
            finally:
                for _, batch in waiting:
                    batch.cancel()

    def _blocks(self, stream: IO[bytes]) -> Iterator[_Block]:
        header = stream.readline(_LONGEST_HEADER)
        self._digest.update(header)
        self._names = _read_header(header, str(self._file))
        line, rest = 2, b""
        while content := stream.read(_BLOCK_BYTES):
            self._digest.update(content)
            end = content.rfind(b"\n") + 1
            if not end:
                if len(rest) > _BLOCK_BYTES:
                    raise DataError("the line does not end", f"{self._file}:{line}", _DO)
                rest += content
                continue
            whole = rest + content[:end]
            if not whole.isspace():
                yield _Block(whole, line)
            line, rest = line + whole.count(b"\n"), content[end:]
        if rest.strip():
            yield _Block(rest, line)

    def _parse(self, block: _Block) -> Batch:
        arrow = self._arrow
        reading = arrow.csv.ReadOptions(use_threads=False, column_names=self._names, block_size=len(block.content) + 1)
        converting = arrow.csv.ConvertOptions(
            column_types=dict.fromkeys(COLUMNS, arrow.int64()),
            include_columns=list(COLUMNS),
            null_values=["", MISSING],
            quoted_strings_can_be_null=True,
        )
        try:
            found = arrow.csv.read_csv(arrow.BufferReader(block.content), reading, convert_options=converting)
            return build_batch(arrow, found)
        except (arrow.ArrowException, BadRow) as error:
            raise self._explain(block, str(error).splitlines()[0]) from error

    def _explain(self, block: _Block, reason: str) -> DataError:
        """The first line that is wrong; one at a time, because this happens once."""
        for number, line in enumerate(block.content.split(b"\n"), block.first_line):
            text = line.decode("utf-8", "replace").rstrip("\r")
            wrong = explain_line(text, self._names) if text else ""
            if wrong:
                return DataError(wrong, f"{self._file}:{number}", _DO)
        last = block.first_line + block.content.count(b"\n")
        return DataError(f"cannot be read: {reason}", f"{self._file}, lines {block.first_line} to {last}", _DO)


def _read_header(header: bytes, name: str) -> list[str]:
    where = f"{name}:1"
    try:
        names = next(csv.reader([header.decode("utf-8-sig")]), [])
    except (UnicodeDecodeError, csv.Error):
        raise DataError(
            "the first line is no header of a CSV file", where, "give a CSV file as it was published"
        ) from None
    names = [word.strip() for word in names]
    check_names(names, where)
    return names


def check_names(names: list[str], where: str) -> None:
    """All columns that are missing at once, and those that are there twice."""
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        shown = ", ".join(names)[:200] or "none"
        what = f"{'a column is' if len(missing) == 1 else 'columns are'} missing: {', '.join(missing)} (there are: {shown})"
        raise DataError(what, where, "give a file with all columns of the Tenrec schema: docs/tenrec-data.md has them")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"columns are there twice: {', '.join(twice)}", where, "leave one of each out")
