"""A prepared data set: a directory with its files and, written last, prepared.json, which says what they are and were made from.

    {"v": 1, "family": "movielens", "name": "ml-1m", "version": 1,
     "inputs": {"ratings.dat": "sha256 …", "movies.dat": "sha256 …"}, "source": {…}, "counts": {…},
     "files": {"ml-1m.inter": {"bytes": 21593519, "sha256": "…"}, …}, "parameters": {}, "seal": "sha256 of all this"}

The inputs' content, not their place or date, decides whether there is anything to do. A directory belongs to one data set: another one
is refused, and so is a file that stands in the way and was not written here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from paceline.errors import OccupiedError
from paceline.files import Lock, read_json, sha256_of, storage_errors, write_json

RECORD = "prepared.json"
_SCHEMA = 1
_LOCK = ".prepare.lock"
_DO = "choose another place with --out DIR"


@dataclass(frozen=True)
class Made:
    """One file of a prepared data set."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Prepared:
    """What prepared.json says."""

    family: str
    name: str
    version: int
    """of the step that made it: raised when the same inputs give other files"""
    inputs: Mapping[str, str]
    """SHA-256 of each input's content"""
    source: Mapping[str, str]
    """where the inputs came from, and their published checksum where they have one"""
    counts: Mapping[str, Any]
    files: Mapping[str, Made]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """what was asked for beside the inputs, such as how much of them"""


def read_prepared(directory: Path) -> Prepared | None:
    """The record of a directory; None where there is none, or none that can be understood."""
    try:
        content = read_json(directory / RECORD)
        seal = content.pop("seal", None)
        if (seal is not None and seal != _seal(content)) or content.pop("v") != _SCHEMA:
            return None
        files = {name: Made(**made) for name, made in content.pop("files").items()}
        return Prepared(**content, files=files)
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, AttributeError, KeyError):
        return None


def check_made(directory: Path, prepared: Prepared) -> list[str]:
    """What is no longer as it was written, one phrase per file."""
    found = []
    for name, made in prepared.files.items():
        file = directory / name
        if not file.is_file():
            found.append(f"{name} is missing")
        elif file.stat().st_size != made.bytes or sha256_of(file) != made.sha256:
            found.append(f"{name} is not as it was written")
    return found


@contextlib.contextmanager
def taking(directory: Path, wait_s: float = 0.0, option: str = "--out DIR") -> Iterator[None]:
    """Makes the directory, and keeps other preparations out of it; those that are in it may end within `wait_s`."""
    with storage_errors(directory, option):
        directory.mkdir(parents=True, exist_ok=True)
        lock = Lock(directory / _LOCK)
        if not lock.acquire_within(wait_s):
            raise OccupiedError("something is being prepared there already", str(directory), "wait until it has ended")
        try:
            yield
        finally:
            lock.release()


def make_once(
    directory: Path,
    is_usable: Callable[[Prepared | None], bool],
    make: Callable[[Prepared | None], None],
    wait_s: float,
    option: str,
) -> None:
    """Has what several processes ask for at a time made by one of them; the others wait. Both are given the record that is there.

    `option` is how somebody chooses another place.
    """
    if is_usable(read_prepared(directory)):
        return
    with taking(directory, wait_s, option):
        # Another process may have made it while this one waited.
        record = read_prepared(directory)
        if not is_usable(record):
            make(record)


def check_owner(directory: Path, record: Prepared | None, family: str, name: str) -> None:
    """OccupiedError where another data set lives there."""
    if record is not None and (record.family, record.name) != (family, name):
        what = f"this directory holds {record.family} {record.name}, and {family} {name} was asked for"
        raise OccupiedError(what, str(directory), _DO)


def check_inputs(directory: Path, record: Prepared | None, inputs: Mapping[str, str], given: str) -> None:
    """OccupiedError where the directory was made from other inputs."""
    if record is None or dict(record.inputs) == dict(inputs):
        return
    differ = [name for name in record.inputs.keys() | inputs.keys() if record.inputs.get(name) != inputs.get(name)]
    what = (
        f"this directory was prepared from other data: {', '.join(sorted(differ))} of {given} is not that of "
        f"{record.source.get('from', 'its source')}"
    )
    raise OccupiedError(what, str(directory), _DO)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One phrase for each parameter that is not what it was, named as it is typed."""
    return [
        f"--{name.replace('_', '-')} was {before.get(name)} and is {value}"
        for name, value in now.items()
        if before.get(name) != value
    ]


class Making:
    """The files of a data set while they are written, several at once; none is in its place before all are whole.

    What stands there and is not `record`'s is refused, never replaced; but with `is_cache`, where nothing else ever stands.

        with Making(directory, record) as making:
            making.write("a.bin", block)
            prepared = making.finish(family=…, …)
    """

    def __init__(self, directory: Path, record: Prepared | None, *, is_cache: bool = False) -> None:
        self._directory, self._record, self._is_cache = directory, record, is_cache
        self._open: dict[str, _Part] = {}

    def __enter__(self) -> Making:
        return self

    def __exit__(self, *_: object) -> None:
        for name, part in self._open.items():
            part.stream.close()
            _part_of(self._directory / name).unlink(missing_ok=True)

    def add(self, name: str) -> None:
        """A file, empty unless something is written."""
        self._open[name] = _Part(_part_of(self._directory / name).open("wb"))

    def write(self, name: str, block: bytes | memoryview) -> None:
        if name not in self._open:
            self.add(name)
        part = self._open[name]
        part.digest.update(block)
        part.size += part.stream.write(block)

    def written(self, name: str) -> Path:
        """Where a file that is not in its place yet can be read, up to here."""
        self._open[name].stream.flush()
        return _part_of(self._directory / name)

    def finish(self, **described: Any) -> Prepared:
        """Puts all files in their places, and then the record."""
        made = {}
        for name, part in self._open.items():
            part.stream.flush()
            os.fsync(part.stream.fileno())
            made[name] = Made(part.size, part.digest.hexdigest())
        prepared = Prepared(**described, files=made)
        for name, entry in made.items():
            if not self._is_cache and (self._record is None or name not in self._record.files):
                _check_free(self._directory / name, entry)
        for name in made:
            os.replace(_part_of(self._directory / name), self._directory / name)
        content = json.loads(json.dumps({"v": _SCHEMA} | asdict(prepared), default=str))
        write_json(self._directory / RECORD, content | {"seal": _seal(content)})
        return prepared


@dataclass
class _Part:
    stream: IO[bytes]
    digest: Any = field(default_factory=hashlib.sha256)
    size: int = 0


def write_prepared(
    directory: Path, record: Prepared | None, contents: Mapping[str, Iterable[bytes]], **described: Any
) -> Prepared:
    """Writes each file and then the record, as `Making` does."""
    with storage_errors(directory), Making(directory, record) as making:
        for name, blocks in contents.items():
            making.add(name)
            for block in blocks:
                making.write(name, block)
        return making.finish(**described)


def _check_free(file: Path, entry: Made) -> None:
    """The very same content may stand there already: a preparation was killed before it wrote its record."""
    if os.path.lexists(file) and not (file.is_file() and sha256_of(file) == entry.sha256):
        raise OccupiedError("a file stands in the way that was not prepared here", str(file), f"move it away, or {_DO}")


def _seal(content: dict[str, Any]) -> str:
    """The digest of what a record says: a changed letter in it is found like one in a file. Records from before have none."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _part_of(file: Path) -> Path:
    return file.with_name(f".{file.name}.part")
