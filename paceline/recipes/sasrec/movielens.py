"""`paceline prepare movielens`: from MovieLens' original files to interactions with times, and titles; no torch, no numpy.

data/ml-1m/ml-1m.inter     user_id:token⇥item_id:token⇥rating:float⇥timestamp:float, in the order of the original file
data/ml-1m/ml-1m.item      item_id:token⇥title:token_seq, in UTF-8
data/ml-1m/prepared.json   what they were made from, and what is in them
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import DataError
from paceline.recipes.download import Remote, Report, download, md5_of
from paceline.recipes.prepared import (
    Prepared,
    check_inputs,
    check_made,
    check_owner,
    read_prepared,
    taking,
    write_prepared,
)
from paceline.recipes.sasrec.movielens_input import DATASETS, Input, read_archive, read_local
from paceline.recipes.sasrec.titles import Titles, parse_titles

FAMILY = "movielens"
VERSION = 1
"""Raised when the same archive gives other files."""
_ARCHIVE_LIMIT_BYTES = 64 * 2**20
_YEAR_10000_S = 253_402_300_800


@dataclass(frozen=True)
class Preparation:
    """What came of it."""

    directory: Path
    prepared: Prepared
    is_new: bool
    """False: everything was there already"""
    notes: list[str]

    @property
    def interactions(self) -> Path:
        return self.directory / f"{self.prepared.name}.inter"


def prepare(name: str | None, given: Path | None, out: Path | None, url: str | None, report: Report) -> Preparation:
    """From a local file, or from the network; the directory is `out`, or data/NAME."""
    local = read_local(name, given) if given is not None else None
    name = local.name if local is not None else name or "ml-1m"
    directory = out or Path("data") / name
    with taking(directory):
        record = read_prepared(directory)
        check_owner(directory, record, FAMILY, name)
        notes = _find_faults(directory, record)
        is_official = record is not None and record.source.get("md5") == DATASETS[name].md5
        if record is not None and is_official and local is None and not notes:
            return Preparation(directory, record, False, [])
        original = local or _fetch(name, directory, url, report)
        inputs = original.digests()
        check_inputs(directory, record, inputs, original.ratings_at)
        if record is not None and not notes:
            return Preparation(directory, record, False, [])
        events, counts = _read_ratings(original)
        titles = _read_titles(original)
        notes += _find_oddities(original, counts, titles)
        contents: dict[str, Iterable[bytes]] = {f"{name}.inter": [events], f"{name}.item": [_format_titles(titles)]}
        described: Mapping[str, Any] = {
            "family": FAMILY,
            "name": name,
            "version": VERSION,
            "inputs": inputs,
            "source": original.source,
            "counts": counts | {"titles": len(titles)},
        }
        return Preparation(directory, write_prepared(directory, record, contents, **described), True, notes)


def _find_faults(directory: Path, record: Prepared | None) -> list[str]:
    """Why what is there has to be made again."""
    if record is None:
        return []
    if record.version != VERSION:
        return [f"made again: version {record.version} of this step made it, this is {VERSION}"]
    return [f"made again: {fault}" for fault in check_made(directory, record)]


def _fetch(name: str, directory: Path, url: str | None, report: Report) -> Input:
    """From the archive in the directory, which is downloaded where it is not there yet."""
    dataset, archive = DATASETS[name], directory / f"{name}.zip"
    address = url or dataset.url(name)
    if not (archive.is_file() and md5_of(archive) == dataset.md5):
        by_hand = f"fetch {dataset.url(name)} elsewhere, then: paceline prepare movielens {name} --from {name}.zip"
        download(Remote(address, dataset.md5, _ARCHIVE_LIMIT_BYTES, by_hand), archive, report)
    return read_archive(name, archive, address)


def _read_ratings(original: Input) -> tuple[bytes, dict[str, Any]]:
    """The content of the .inter file, and what is in it; DataError with the line for what is no rating."""
    separator = DATASETS[original.name].separator
    lines = ["user_id:token\titem_id:token\trating:float\ttimestamp:float\n"]
    users, items, times = set[str](), set[str](), set[str]()
    try:
        text = original.ratings.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = original.ratings.count(b"\n", 0, error.start) + 1
        raise _bad_line(original, line, "this is not UTF-8 text") from error
    for number, row in enumerate(text.split("\n"), start=1):
        if not row.strip():
            continue
        fields = [field.strip() for field in row.split(separator)]
        if len(fields) != 4 or not all(fields) or "\t" in "".join(fields):
            raise _bad_line(original, number, f"not user, item, rating and timestamp: {row[:80]!r}")
        user, item, rating, time = fields
        if not (_is_number(rating, -math.inf, math.inf) and _is_number(time, 0, _YEAR_10000_S)):
            raise _bad_line(
                original, number, f"the rating is no number, or the timestamp no time in seconds: {row[:80]!r}"
            )
        users.add(user)
        items.add(item)
        times.add(time)
        lines.append(f"{user}\t{item}\t{rating}\t{time}\n")
    if len(times) < 2:
        what = "all ratings have the same timestamp" if times else "the file holds no ratings"
        raise DataError(f"{what}: there is no time in it", original.ratings_at, "give the original archive")
    seconds = [float(time) for time in times]
    counts = {
        "users": len(users),
        "items": len(items),
        "events": len(lines) - 1,
        "first_s": min(seconds),
        "last_s": max(seconds),
    }
    return "".join(lines).encode(), counts


def _is_number(word: str, least: float, below: float) -> bool:
    try:
        value = float(word)
    except ValueError:
        return False
    return math.isfinite(value) and least <= value < below


def _bad_line(original: Input, line: int, what: str) -> DataError:
    return DataError(what, f"{original.ratings_at}:{line}", "correct or remove the line, or give the original archive")


def _read_titles(original: Input) -> Titles:
    if original.titles is None:
        return Titles()
    return parse_titles(original.titles, DATASETS[original.name].titles, original.titles_at)


def _format_titles(titles: Titles) -> bytes:
    rows = [f"{item}\t{' '.join(title.split())}\n" for item, title in titles.items()]
    return "".join(["item_id:token\ttitle:token_seq\n", *rows]).encode()


def _find_oddities(original: Input, counts: Mapping[str, Any], titles: Titles) -> list[str]:
    """What is worth saying about files that no checksum vouches for."""
    notes = [titles.problem] if titles.problem else []
    dataset = DATASETS[original.name]
    if original.titles is None:
        notes.append(f"no titles: there is no {dataset.titles} beside the ratings")
    if "md5" not in original.source and counts["events"] != dataset.num_ratings:
        notes.append(f"not the whole {original.name}: {counts['events']:,} ratings, published {dataset.num_ratings:,}")
    elif "md5" not in original.source:
        notes.append("taken as it is: only the archive has a published checksum")
    return notes
