"""Documents out of local files, one at a time, from any place on: JSONL, plain text; parquet.py has the third kind. No torch, no numpy.

    for found in read_documents(Origin("a.jsonl", …), field="text", offset=0, number=0):
        found.text, found.where, found.offset

What is no document (a line that is no JSON, text that is not UTF-8) is a fault with its place; whoever asked decides what becomes of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from paceline.errors import DataError

_LONGEST_LINE = 256 * 2**20
PIECE_BYTES = 2**20
"""a longer text file becomes several documents, each cut at the end of a paragraph or a line"""
SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".rst": "text",
}


@dataclass(frozen=True)
class Found:
    """One document, or why there is none here."""

    text: str | None
    where: str
    """file:line, or whatever helps to find it"""
    offset: int
    """where the next one begins"""
    number: int
    """lines, pieces or rows up to there"""
    fault: str = ""


@dataclass(frozen=True)
class Origin:
    """A file that documents come from."""

    name: str
    """for people"""
    kind: str
    """jsonl, parquet or text"""
    open: Callable[[], IO[bytes]]
    is_remote: bool = False


def local_origin(path: Path) -> Origin:
    return Origin(str(path), SUFFIXES[path.suffix.lower()], lambda: open(path, "rb"))


def read_documents(origin: Origin, field: str, offset: int, number: int) -> Iterator[Found]:
    """From a place on; DataError, with the file, where nothing more can be read of it."""
    try:
        if origin.kind == "parquet":
            from paceline.recipes.nsa.data.parquet import read_parquet

            yield from read_parquet(origin, field, offset)
            return
        with origin.open() as stream:
            stream.seek(offset)
            reader = _read_lines(stream, field, origin.name) if origin.kind == "jsonl" else _read_text(stream, origin)
            yield from reader(offset, number)
    except DataError:
        raise
    except Exception as error:
        # Over the network any error of any HTTP client may come; of a local file, only the system's are not ours.
        if not (origin.is_remote or isinstance(error, OSError)):
            raise
        what = f"the file cannot be read ({getattr(error, 'strerror', None) or error})"
        raise DataError(what, origin.name, "type the same again once it can: it goes on there") from error


_Reader = Callable[[int, int], Iterator[Found]]


def _read_lines(stream: IO[bytes], field: str, name: str) -> _Reader:
    def read(offset: int, number: int) -> Iterator[Found]:
        while line := stream.readline(_LONGEST_LINE):
            is_first, offset, number = offset == 0, offset + len(line), number + 1
            where = f"{name}:{number}"
            if len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
                raise DataError(
                    f"a line has more than {_LONGEST_LINE:,} bytes", where, "this is no JSONL: leave it out"
                )
            line = line.removeprefix(b"\xef\xbb\xbf") if is_first else line
            if line.strip():
                text, fault = _parse(line, field)
                yield Found(text, where, offset, number, fault)

    return read


def _parse(line: bytes, field: str) -> tuple[str | None, str]:
    """The text of a line, or its fault."""
    try:
        record: Any = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return None, f"this line is not UTF-8 (byte {error.start + 1} of it)"
    except (ValueError, RecursionError):
        torn = "" if line.endswith(b"\n") else ": the file ends in the middle of it"
        return None, f"this line is no JSON{torn} ({line[:60].decode(errors='replace')!r})"
    if not isinstance(record, dict):
        return None, "this line is no JSON object"
    if field not in record:
        return None, f"this line has no field {field!r} (it has: {', '.join(map(str, record)) or 'none'})"
    return check_text(record[field], field)


def check_text(value: Any, field: str) -> tuple[str | None, str]:
    """A document's text, or its fault; null is an empty one."""
    if value is None:
        return "", ""
    if not isinstance(value, str):
        return None, f"the field {field!r} holds no text, but {type(value).__name__}"
    try:
        value.encode()
    except UnicodeEncodeError:
        return None, f"the field {field!r} holds half of a surrogate pair, which is no text"
    return value, ""


def _read_text(stream: IO[bytes], origin: Origin) -> _Reader:
    def read(offset: int, number: int) -> Iterator[Found]:
        # One byte more than a piece says whether the file goes on after it.
        while block := stream.read(PIECE_BYTES + 1):
            piece = block if len(block) <= PIECE_BYTES else block[: _cut(block[:PIECE_BYTES])]
            at, offset, number = offset, offset + len(piece), number + 1
            stream.seek(offset)
            try:
                text, fault = piece.decode("utf-8-sig" if at == 0 else "utf-8"), ""
            except UnicodeDecodeError as error:
                text, fault = "", f"this is not UTF-8 text (byte {at + error.start + 1})"
            if "\0" in text:
                fault = f"there are NUL bytes: this is no text (byte {at + piece.index(0) + 1})"
            yield Found(None if fault else text, origin.name, offset, number, fault)

    return read


def _cut(block: bytes) -> int:
    """Where a long text is cut: after the last empty line in its second half, or the last line, or the last whole character."""
    for end in (b"\n\n", b"\n", b" "):
        at = block.rfind(end, len(block) // 2)
        if at >= 0:
            return at + len(end)
    at = len(block)
    # A character of UTF-8 is at most 4 bytes; those after its first begin with the bits 10.
    for back in range(1, 5):
        if block[-back] & 0xC0 != 0x80:
            return at - back
    return at
