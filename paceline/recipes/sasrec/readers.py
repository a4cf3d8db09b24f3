"""Reads files of interactions: `user item [timestamp]` text, RecBole's `.inter`, MovieLens' ratings.dat, ratings.csv and u.data.

    196 242 881250949                                            text: blanks or tabs, with or without the time
    user_id:token⇥item_id:token⇥rating:float⇥timestamp:float     inter: columns by name, in any order, others passed over
    1::1193::5::978300760                                        movielens, ratings.dat
    userId,movieId,rating,timestamp                              movielens, ratings.csv: columns by name
    196⇥242⇥3⇥881250949                                          movielens, u.data

Users and items are any words; each gets a number in the order of (length of the word, bytes of the word), which for whole numbers is
their own order and never depends on the order of lines. A user's lines need not stand together. With times, events are sorted by
them, ties in file order; without, file order counts. Lines are cut by numpy, many at once; a bad one is named with its number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from paceline.errors import DataError
from paceline.recipes.sasrec.interactions import Floats, Interactions, Ints, Names, group_events
from paceline.recipes.sasrec.source import detect_format, find_file, first_line, movielens_separator

_CHUNK_BYTES = 32 * 2**20
_LONGEST_NAME = 256
_TIME = ("timestamp", "time", "datetime", "date", "unix_time")
"""columns that look like the time: passed over without a word, data would seem to have none"""
_MOST_PLACES = 2**22
"""that are worked out at once, to bound what they take"""
_LONGEST_SHOWN = 80
_LATEST = 2.0**63
"""Nanoseconds since 1970 fit below it; a larger number is a mistake, and its intervals would lose their digits."""
_HEADERS = [[user, item] for user in ("user", "userid", "user_id") for item in ("item", "itemid", "item_id", "movieid")]
_NEWLINE, _SPACE = ord("\n"), ord(" ")

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class _Columns:
    """How a line is cut, and which of its fields are which."""

    separator: str | None
    """None: any run of blanks"""
    names: tuple[str, ...]
    user: int
    item: int
    time: int | None
    has_header: bool


@dataclass(frozen=True)
class _Rows:
    """The wanted fields of some consecutive lines."""

    users: Names
    items: Names
    times: Floats | None


def read_interactions(path: str, requested_format: str = "auto") -> Interactions:
    """Everything in the file, sorted; DataError (file:line) for what cannot be read."""
    file = find_file(path)
    try:
        columns = _find_columns(file, detect_format(file, requested_format))
        rows = [_Cutter(file, columns, line, chunk).rows() for line, chunk in _chunks(file, columns.has_header)]
    except OSError as error:
        raise DataError(
            f"the data file cannot be read ({error.strerror})", str(file), "check the disk and try again"
        ) from error
    if not sum(len(part.users) for part in rows):
        raise DataError(
            "the data file holds no interactions",
            str(file),
            f"lines of the form {' '.join(columns.names)!r} are needed",
        )
    users, user_names = _number(np.concatenate([part.users for part in rows]))
    items, item_names = _number(np.concatenate([part.items for part in rows]))
    times = [part.times for part in rows if part.times is not None]
    return group_events(users, items + 1, np.concatenate(times) if times else None, user_names, item_names)


def _find_columns(file: Path, format: str) -> _Columns:
    line, first = first_line(file)
    if format == "text":
        words = first.split()
        if [word.lower() for word in words[:2]] in _HEADERS:
            raise DataError(
                f"this looks like a header, and text files have none: {_shorten(first)!r}",
                f"{file}:{line}",
                "remove the line, or give the columns RecBole's names (user_id:token and so on) and set data.format=inter",
            )
        names = ("user", "item", "timestamp")[: max(2, min(3, len(words)))]
        return _Columns(None, names, 0, 1, 2 if len(names) == 3 else None, has_header=False)
    separator = "\t" if format == "inter" else movielens_separator(first)
    if format == "movielens" and separator != ",":
        return _Columns(separator, ("user", "item", "rating", "timestamp"), 0, 1, 3, has_header=False)
    header = tuple(field.strip() for field in first.split(separator))
    wanted = (
        ("user_id:token", "item_id:token", "timestamp:float")
        if format == "inter"
        else ("userId", "movieId", "timestamp")
    )
    missing = [name for name in wanted[:2] if name not in header]
    # A time under another type would silently turn the order of time into the order of the file.
    mistyped = [name for name in header if name.split(":")[0].lower() in _TIME and name != wanted[2]]
    if missing or mistyped or len(set(header)) < len(header):
        fault = (
            f"lacks the column {' and '.join(missing)}"
            if missing
            else f"has a column {mistyped[0]}"
            if mistyped
            else "names a column twice"
        )
        raise DataError(
            f"the header {fault}: {_shorten(first)!r}",
            f"{file}:{line}",
            f"begin the file with {separator.join(wanted)!r}, or set data.format",
        )
    return _Columns(
        separator,
        header,
        header.index(wanted[0]),
        header.index(wanted[1]),
        header.index(wanted[2]) if wanted[2] in header else None,
        has_header=True,
    )


def _chunks(file: Path, has_header: bool) -> Iterator[tuple[int, bytes]]:
    """(number of the first line, whole lines) until the end of the file, without the header."""
    line, rest = 1, b""
    with open(file, "rb") as stream:
        while True:
            block = stream.read(_CHUNK_BYTES)
            whole, newline, tail = (rest + block).rpartition(b"\n")
            if not block:
                whole, newline, tail = rest, b"\n", b""
            rest = tail
            if newline and whole:
                if line == 1:
                    whole = whole.removeprefix(b"\xef\xbb\xbf")
                if has_header and whole.strip():
                    blank = len(whole) - len(whole.lstrip(b"\r\n"))
                    end = whole.find(b"\n", blank)
                    # Blanked rather than cut off, so that line numbers stay right.
                    whole = b"\n" * whole.count(b"\n", 0, blank) + (whole[end:] if end >= 0 else b"")
                    has_header = False
                yield line, whole + b"\n"
            line += whole.count(b"\n") + (1 if newline else 0)
            if not block:
                return


class _Cutter:
    """Cuts one chunk of whole lines into the wanted columns."""

    def __init__(self, file: Path, columns: _Columns, first_line: int, chunk: bytes) -> None:
        self._file = file
        self._columns = columns
        self._first_line = first_line
        self._chunk = chunk.replace(b"\r\n", b"\n") if b"\r" in chunk else chunk
        self._check_text()
        # `::` becomes one byte that no text holds otherwise; lines keep their number.
        cut = self._chunk.replace(b"::", b"\0") if columns.separator == "::" else self._chunk
        self._data: Bytes = np.frombuffer(cut, np.uint8)

    def rows(self) -> _Rows:
        starts, ends, lines = self._fields()
        num_fields = len(self._columns.names)
        counts = np.bincount(lines)
        wrong = np.flatnonzero((counts != 0) & (counts != num_fields))
        if len(wrong):
            expected = (self._columns.separator or " ").join(self._columns.names)
            self._refuse(int(wrong[0]), f"{counts[wrong[0]]} fields where {num_fields} are needed ({expected})")
        starts, ends = starts.reshape(-1, num_fields), ends.reshape(-1, num_fields)
        lines = lines[::num_fields]
        columns = self._columns
        times = None if columns.time is None else self._times(starts[:, columns.time], ends[:, columns.time], lines)
        users = self._words(starts[:, columns.user], ends[:, columns.user], lines, "user")
        items = self._words(starts[:, columns.item], ends[:, columns.item], lines, "item")
        return _Rows(users, items, times)

    def _fields(self) -> tuple[Ints, Ints, Ints]:
        """Start, end and line (from 0) of each field; blank lines have none."""
        data = self._data
        if self._columns.separator is None:
            is_blank = data <= _SPACE
            edges = np.flatnonzero(np.diff(is_blank, prepend=True))
            starts, ends = edges[::2], edges[1::2]
            lines = np.cumsum(data == _NEWLINE, dtype=np.int32)[starts].astype(np.int64)
            return starts, ends, lines
        separator = 0 if self._columns.separator == "::" else ord(self._columns.separator)
        ends = np.flatnonzero((data == separator) | (data == _NEWLINE))
        starts = np.concatenate(([0], ends[:-1] + 1))
        closes = data[ends] == _NEWLINE
        lines = np.cumsum(closes) - closes
        opens = np.concatenate(([True], closes[:-1]))
        is_field = ~(opens & closes & (starts == ends))
        return starts[is_field], ends[is_field], lines[is_field]

    def _words(self, starts: Ints, ends: Ints, lines: Ints, what: str) -> Names:
        """The fields as an array of byte strings, without the blanks around them."""
        starts, ends = self._trim(starts, ends)
        lengths = ends - starts
        for wrong, fault in (
            (lengths == 0, "is empty"),
            (lengths > _LONGEST_NAME, f"is longer than {_LONGEST_NAME} bytes"),
        ):
            if wrong.any():
                self._refuse(int(lines[np.argmax(wrong)]), f"the {what} {fault}")
        width = int(lengths.max(initial=1))
        within = np.arange(width)
        letters = np.zeros((len(starts), width), np.uint8)
        at_once = max(1, _MOST_PLACES // width)  # a single long name makes all of them wide
        for begin in range(0, len(starts), at_once):
            some = slice(begin, begin + at_once)
            grid = np.minimum(starts[some, None] + within, len(self._data) - 1)
            letters[some] = np.where(within < lengths[some, None], self._data[grid], 0)
        return letters.view(f"S{width}").ravel()

    def _trim(self, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
        while (leads := (starts < ends) & (self._data[starts] == _SPACE)).any():
            starts = starts + leads
        while (trails := (starts < ends) & (self._data[ends - 1] == _SPACE)).any():
            ends = ends - trails
        return starts, ends

    def _times(self, starts: Ints, ends: Ints, lines: Ints) -> Floats:
        words = self._words(starts, ends, lines, "timestamp")
        try:
            times = words.astype(np.float64)
        except ValueError:
            bad = next(index for index, word in enumerate(words) if not _is_number(word))
            self._refuse(int(lines[bad]), "the timestamp is not a number")
        is_time = (times >= 0) & (times < _LATEST)  # not a number is neither
        if not is_time.all():
            self._refuse(int(lines[np.argmin(is_time)]), "the timestamp is not a time (0 or later, below 2^63)")
        return times

    def _check_text(self) -> None:
        at = self._chunk.find(b"\0")
        if at < 0:
            try:
                self._chunk.decode()
                return
            except UnicodeDecodeError as error:
                at = error.start
        self._refuse(self._chunk.count(b"\n", 0, at), "this is not UTF-8 text")

    def _refuse(self, line: int, what: str) -> NoReturn:
        text = self._chunk.split(b"\n", line + 1)[line].decode(errors="replace")
        raise DataError(
            f"{what}: {_shorten(text)!r}",
            f"{self._file}:{self._first_line + line}",
            "correct or remove the line, or set data.format (text, inter, movielens)",
        )


def _number(words: Names) -> tuple[Ints, Names]:
    """Each word's number, and the words in the order of their numbers: shorter first, then by bytes."""
    if words.dtype.itemsize <= 8:
        # As right-aligned integers, whose order is the order wanted; sorting them is ten times faster than sorting strings.
        keys = words.astype("S8").view(">u8").astype(np.uint64)
        lengths = np.strings.str_len(words).astype(np.uint64)
        keys >>= np.uint64(8) * (np.uint64(8) - lengths)
        _, first, numbers = np.unique(keys, return_index=True, return_inverse=True)
        return numbers.astype(np.int64), words[first]
    names, numbers = np.unique(words, return_inverse=True)
    order = np.argsort(np.strings.str_len(names), kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return place[numbers].astype(np.int64), names[order]


def _is_number(word: bytes) -> bool:
    try:
        np.array([word]).astype(np.float64)
    except ValueError:
        return False
    return True


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"
