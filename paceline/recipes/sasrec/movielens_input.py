"""MovieLens' original files: from the official archive, whose MD5 was published, or from files that somebody has unpacked.

read_local("ml-1m", Path("ml-1m.zip"))   -> Input("ml-1m", b"1::1193::5::978300760…", b"1::Toy Story (1995)…", …)

Nothing is unpacked: the two files that are wanted are read out of the archive, by their names and up to a size.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from paceline.errors import DataError, UsageError
from paceline.recipes.download import md5_of, wrong_checksum
from paceline.recipes.sasrec.source import first_line, movielens_separator

_LIMIT_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Dataset:
    """One of MovieLens' data sets as it is published."""

    md5: str
    """of the archive"""
    ratings: str
    titles: str
    separator: str
    num_ratings: int

    def url(self, name: str) -> str:
        return f"https://files.grouplens.org/datasets/movielens/{name}.zip"


DATASETS = {
    "ml-1m": Dataset("c4d9eecfca2ab87c1945afe126590906", "ratings.dat", "movies.dat", "::", 1_000_209),
    "ml-100k": Dataset("0e33842e24a9c977be4e0107933c0723", "u.data", "u.item", "\t", 100_000),
}


@dataclass(frozen=True)
class Input:
    """The content of the original files."""

    name: str
    ratings: bytes
    titles: bytes | None
    """None: there is no file of titles"""
    ratings_at: str
    """what the file of ratings is called when a line in it is wrong"""
    titles_at: str
    source: dict[str, str]
    """where it came from, for prepared.json"""

    def digests(self) -> dict[str, str]:
        dataset = DATASETS[self.name]
        contents = {dataset.ratings: self.ratings, dataset.titles: self.titles}
        return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items() if content is not None}


def read_local(name: str | None, path: Path) -> Input:
    """From a local archive, folder or file of ratings; which data set it is shows in the file where no name is given."""
    try:
        if path.is_dir():
            path = _ratings_inside(name, path)
        if zipfile.is_zipfile(path) or _begins_like_a_zip(path):  # also one that was cut off: its checksum tells
            return read_archive(_name_of(name, path), path, str(path))
        return _read_unpacked(name, path)
    except FileNotFoundError:
        raise UsageError("there is no such file", f"--from {path}", "give the archive or the file of ratings") from None
    except OSError as error:
        raise UsageError(f"cannot read there ({error.strerror})", f"--from {path}", "check its permissions") from error


def _begins_like_a_zip(path: Path) -> bool:
    with open(path, "rb") as stream:
        return stream.read(2) == b"PK"


def read_archive(name: str, path: Path, origin: str) -> Input:
    """From an archive with the published checksum; DataError for any other."""
    dataset = DATASETS[name]
    found = md5_of(path)
    if found != dataset.md5:
        do = f"download {dataset.url(name)} again, or unpack it and give its {dataset.ratings}"
        raise wrong_checksum(found, dataset.md5, str(path), do)
    try:
        with zipfile.ZipFile(path) as archive:
            _check_names(archive, path)
            ratings, titles = (_read_member(archive, f"{name}/{file}") for file in (dataset.ratings, dataset.titles))
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError, RuntimeError) as error:
        raise DataError(f"the archive cannot be read ({error})", str(path), f"download {dataset.url(name)}") from error
    inside = f"{path}!{name}"
    source = {"from": origin, "md5": found}
    return Input(name, ratings, titles, f"{inside}/{dataset.ratings}", f"{inside}/{dataset.titles}", source)


def _check_names(archive: zipfile.ZipFile, path: Path) -> None:
    for member in archive.namelist():
        pure = PurePosixPath(member.replace("\\", "/"))
        if pure.is_absolute() or ".." in pure.parts:
            raise DataError(f"the archive has a file that leads out of it: {member!r}", str(path), "do not use it")


def _read_member(archive: zipfile.ZipFile, member: str) -> bytes:
    with archive.open(member) as stream:
        content = stream.read(_LIMIT_BYTES + 1)
    if len(content) > _LIMIT_BYTES:
        raise DataError(
            f"{member} has more than {_LIMIT_BYTES:,} bytes: this is not MovieLens",
            str(archive.filename),
            "do not use it",
        )
    return content


def _name_of(name: str | None, path: Path) -> str:
    """Which data set an archive is, by its checksum."""
    if name is not None:
        return name
    found = md5_of(path)
    by_md5 = {dataset.md5: each for each, dataset in DATASETS.items()}
    if found not in by_md5:
        known = " or ".join(f"{md5} ({each})" for md5, each in by_md5.items())
        raise wrong_checksum(found, known, str(path), "download it again, or say which it should be: ml-1m or ml-100k")
    return by_md5[found]


def _ratings_inside(name: str | None, folder: Path) -> Path:
    """The file of ratings in an unpacked archive, or in the folder that holds it."""
    wanted = {each: dataset for each, dataset in DATASETS.items() if name in (None, each)}
    for each, dataset in wanted.items():
        for place in (folder / dataset.ratings, folder / each / dataset.ratings):
            if place.is_file():
                return place
    files = " or ".join(dataset.ratings for dataset in wanted.values())
    raise DataError(f"the folder has no {files}", f"--from {folder}", "give the folder of the unpacked archive")


def _read_unpacked(name: str | None, path: Path) -> Input:
    line, first = first_line(path)
    separator = movielens_separator(first)
    is_ratings = len(first.split(separator)) == 4 and separator != "," and ":token" not in first
    is_of = next((each for each, dataset in DATASETS.items() if is_ratings and dataset.separator == separator), None)
    if is_of is None:
        raise _no_ratings(path, line, first)
    if name not in (None, is_of):
        what = f"these are ratings as in {is_of} ({DATASETS[is_of].ratings}), and {name} was asked for"
        raise DataError(what, f"{path}:{line}", f"paceline prepare movielens {is_of} --from {path}")
    if path.stat().st_size > _LIMIT_BYTES:
        what = f"the file has more than {_LIMIT_BYTES:,} bytes: this is not {is_of}"
        raise DataError(what, str(path), f"train on it as it is: paceline train sasrec data.path={path}")
    titles = path.with_name(DATASETS[is_of].titles)
    has_titles = titles.is_file()
    content = titles.read_bytes() if has_titles else None
    return Input(is_of, path.read_bytes(), content, str(path), str(titles), {"from": str(path)})


def _no_ratings(path: Path, line: int, first: str) -> DataError:
    shown = first if len(first) <= 80 else f"{first[:79]}…"
    train = f"paceline train sasrec data.path={path}"
    if ":token" in first or "," in first:
        what = "this is not an original file of ml-1m or ml-100k, and needs no preparation"
        return DataError(f"{what}: {shown!r}", f"{path}:{line}", f"train on it as it is: {train}")
    if len(first.split("::" if "::" in first else None)) not in (2, 3):
        return DataError(f"this is no file of ratings: {shown!r}", f"{path}:{line}", "give ratings.dat or u.data")
    # Without times, the order of events and the intervals between them would have to be made up.
    what = f"the ratings have no timestamps, and none are invented: {shown!r}"
    do = f"give the original archive, ratings.dat or u.data; to train in the order of the file, without time: {train}"
    return DataError(what, f"{path}:{line}", do)
