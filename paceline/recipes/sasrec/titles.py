"""What items are called, from the file that data sets keep beside their interactions; the standard library only.

    ml-1m.inter   ml-1m.item     item_id:token⇥title:token_seq      (or movie_title, name)
    ratings.dat   movies.dat     1::Toy Story (1995)::Animation|Children's|Comedy
    ratings.csv   movies.csv     movieId,title,genres
    u.data        u.item         1|Toy Story (1995)|01-Jan-1995|…

Titles only please the reader: a file that is not there gives none, one that is damaged gives what can be read of it, and says so.
Plain text files have none: their items are often numbered anew, and another data set's titles would be wrong without a sign of it.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path

from paceline.recipes.sasrec.source import detect_format, first_line, movielens_separator

_NAMES = ("title", "movie_title", "name")
_BESIDE = {"::": "movies.dat", ",": "movies.csv", "\t": "u.item"}
"""what cuts a MovieLens file of ratings -> the file of titles beside it"""

Line = tuple[int, str]
Pairs = Iterator[tuple[str, str] | int]
"""(item, title), or the number of a line that is neither"""


class Titles(dict[str, str]):
    """Title by item, both as the source has them."""

    problem = ""
    """what is wrong with the file they were read from; empty where nothing is"""


def read_titles(path: str | Path, requested_format: str = "auto") -> Titles:
    """The titles that lie beside a file of interactions; never raises for what it finds there."""
    try:
        file = _find(Path(path).expanduser(), requested_format)
        if file is None or not file.exists():
            return Titles()
        return parse_titles(file.read_bytes(), file.name, str(file))
    except OSError as error:
        return _damaged(f"titles cannot be read ({error.strerror}): {error.filename or path}")


def parse_titles(content: bytes, name: str, where: str) -> Titles:
    """The titles in the content of a file of that name; `where` is what it is called when something is wrong with it."""
    titles, wrong, num_lines = Titles(), list[int](), 0
    try:
        for pair in _parser_of(name)(list(_lines(decode(content)))):
            num_lines += 1
            if isinstance(pair, int):
                wrong.append(pair)
            else:
                titles[pair[0]] = pair[1]
    except (_NoColumns, csv.Error) as error:
        return _damaged(f"titles cannot be read ({error}): {where}")
    if wrong:
        titles.problem = f"{len(wrong):,} of {num_lines:,} titles cannot be read, the first at {where}:{wrong[0]}"
    return titles


def decode(content: bytes) -> str:
    """UTF-8, or Latin-1 as in MovieLens' older files: their accented letters are never valid UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


class _NoColumns(ValueError):
    """A header without a column of items or of titles."""


def _find(file: Path, requested_format: str) -> Path | None:
    format = detect_format(file, requested_format)
    if format == "inter":
        return file.with_suffix(".item")
    return file.with_name(_BESIDE[movielens_separator(first_line(file)[1])]) if format == "movielens" else None


def _parser_of(name: str) -> Callable[[list[Line]], Pairs]:
    if name.endswith(".item") and name != "u.item":
        return _parse_item
    return {"movies.dat": _parse_dat, "movies.csv": _parse_csv, "u.item": _parse_u_item}[name]


def _lines(text: str) -> Iterator[Line]:
    # Cut at \n alone: str.splitlines also cuts at characters that titles may hold.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.rstrip("\r")


def _parse_item(lines: list[Line]) -> Pairs:
    header = [field.strip().split(":")[0] for field in lines[0][1].split("\t")] if lines else []
    column = next((header.index(name) for name in _NAMES if name in header), None)
    if column is None or "item_id" not in header:
        raise _NoColumns("there is no column item_id or title")
    for number, line in lines[1:]:
        fields = line.split("\t")
        yield (
            (fields[header.index("item_id")].strip(), fields[column].strip()) if len(fields) == len(header) else number
        )


def _parse_dat(lines: list[Line]) -> Pairs:
    for number, line in lines:
        fields = line.split("::")
        yield (fields[0].strip(), "::".join(fields[1:-1]).strip()) if len(fields) > 2 else number


def _parse_u_item(lines: list[Line]) -> Pairs:
    for number, line in lines:
        fields = line.split("|")
        yield (fields[0].strip(), fields[1].strip()) if len(fields) > 1 else number


def _parse_csv(lines: list[Line]) -> Pairs:
    if not lines or not {"movieId", "title"} <= set(next(csv.reader([lines[0][1]]))):
        raise _NoColumns("there is no column movieId or title")
    rows = csv.DictReader([line for _, line in lines])
    for (number, _), row in zip(lines[1:], rows, strict=False):
        item, title = row["movieId"], row["title"]
        yield (item.strip(), title.strip()) if item and title else number


def _damaged(problem: str) -> Titles:
    titles = Titles()
    titles.problem = problem
    return titles
