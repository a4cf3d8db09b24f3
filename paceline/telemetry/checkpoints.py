"""Checkpoints as files: their names, their manifest, whether they are whole. Standard library only; nothing is ever unpickled.

    checkpoints/step_00001000/   manifest.json   state.json   shard-00000.safetensors …
    checkpoints/latest -> step_00001000          best, final likewise

    checkpoint = read_checkpoint(layout.checkpoints / step_name(1000))   # its manifest: cheap
    check_files(checkpoint)                                              # every byte; CheckpointError says what is wrong
    find_checkpoint(Path("runs/a"), "best")

A checkpoint appears under its name only when its manifest is written, which is last.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import CheckpointError, UsageError
from paceline.files import read_json, write_text
from paceline.telemetry.layout import RunLayout

SCHEMA = 1
"""Version of a checkpoint's files; a newer one is refused."""
MANIFEST = "manifest.json"
STATE = "state.json"
LINKS = ("latest", "best", "final")
SPARE_BYTES = 8 << 20
"""What a save leaves free on the disk, for the small files that everything else writes."""

_STEP_NAME = re.compile(r"step_(\d{8,12})")
_FILE_NAME = re.compile(r"state\.json|shard-\d{5}\.safetensors")
_CHUNK = 1 << 22
_PLAIN = json.JSONEncoder(default=str)
_SORTED = json.JSONEncoder(default=str, sort_keys=True)

EncodedFields = dict[str, tuple[Any, str, str]]
"""of a manifest: the value of each, as it is written, and as its checksum has it"""


@dataclass(frozen=True)
class FileEntry:
    """What one file of a checkpoint must be."""

    bytes: int
    crc32: int


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint consists of, and which run wrote it."""

    step: int
    run: str
    """the id of the run"""
    attempt: int
    world_size: int
    paceline: str
    identity: dict[str, Any]
    """{"fingerprint": …, "values": {dotted key: value}} of the run"""
    files: dict[str, FileEntry]
    tensors: dict[str, str]
    """tensor -> the file it is in"""
    software: dict[str, Any] = field(default_factory=dict)
    """of the attempt that wrote it; empty: not known, as of older versions"""
    time: float = field(default_factory=time.time)
    v: int = SCHEMA

    @property
    def num_bytes(self) -> int:
        return sum(entry.bytes for entry in self.files.values())


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose manifest has been read; whether its files are what that says, `check_files` tells."""

    path: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        return self.manifest.step


def step_name(step: int) -> str:
    return f"step_{step:08d}"


def shard_name(index: int) -> str:
    return f"shard-{index:05d}.safetensors"


def list_checkpoints(directory: Path) -> list[Path]:
    """The checkpoint directories of a run, the newest step first; links and leftovers of unfinished saves are not among them."""
    with _reading(directory):
        return [directory / name for name in list_step_names(directory)]


def list_step_names(directory: str | Path) -> list[str]:
    """Their names alone."""
    try:
        with os.scandir(directory) as entries:
            found = [
                (int(match[1]), entry.name)
                for entry in entries
                if (match := _STEP_NAME.fullmatch(entry.name)) and entry.is_dir(follow_symlinks=False)
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [name for _, name in sorted(found, reverse=True)]


def write_manifest(directory: str | Path, manifest: Manifest, encoded: EncodedFields | None = None) -> None:
    """A line per field, which a person can read.

    `encoded` is what the manifest before this one, of the same run, left behind: a field that is the same object is not encoded again,
    because beside a training that is short of the interpreter's lock every microsecond of this is taken from its steps.
    """
    content = vars(manifest) | {"files": {name: vars(entry) for name, entry in manifest.files.items()}}
    known = {} if encoded is None else encoded
    for key, value in content.items():
        if key not in known or known[key][0] is not value:
            known[key] = value, _PLAIN.encode(value), _SORTED.encode(value)
    # As _digest has it: the fields in their order, one after another.
    whole = ", ".join([f'"{key}": {known[key][2]}' for key in sorted(content)])
    lines = [f'  "{key}": {known[key][1]}' for key in content]
    lines.append(f'  "crc32": {zlib.crc32(f"{{{whole}}}".encode())}')
    write_text(f"{directory}/{MANIFEST}", "{\n" + ",\n".join(lines) + "\n}\n")


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in that directory; CheckpointError if its manifest is not what it should be."""
    file = path / MANIFEST
    with _reading(file):
        content = read_json(file)
    if not isinstance(content, dict):
        raise damaged(path, f"{MANIFEST} is not a manifest")
    version = content.get("v")
    if isinstance(version, int) and version > SCHEMA:
        what = f"this checkpoint was written by a newer Paceline (version {version}, this one reads up to {SCHEMA})"
        raise UsageError(what, str(path), "install the newer version")
    try:
        return Checkpoint(path, _parse_manifest(content))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise damaged(path, f"{MANIFEST} is not a manifest ({error})") from error


def check_files(checkpoint: Checkpoint) -> None:
    """Reads every file of the checkpoint once; CheckpointError names the first that is missing, cut or changed."""
    names = sorted(checkpoint.manifest.files)
    for name in names:  # sizes first: most damage shows there, for nothing
        with _reading(checkpoint.path / name):
            found = (checkpoint.path / name).stat().st_size
        expected = checkpoint.manifest.files[name].bytes
        if found != expected:
            raise damaged(checkpoint.path, f"{name} has {found} bytes instead of {expected}")
    with ThreadPoolExecutor(max_workers=min(8, len(names))) as pool:
        for name, crc in zip(names, pool.map(lambda name: _checksum(checkpoint.path / name), names), strict=True):
            if crc != checkpoint.manifest.files[name].crc32:
                raise damaged(checkpoint.path, f"{name} does not have its checksum")


def shards_digest(checkpoint: Checkpoint) -> str:
    """Of what the manifest says about the shards: their sizes and checksums stand for their bytes."""
    shards = {name: asdict(entry) for name, entry in checkpoint.manifest.files.items() if name != STATE}
    return hashlib.sha256(json.dumps(shards, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def find_checkpoint(path: Path, word: str = "latest") -> Checkpoint:
    """A checkpoint of a run directory by its link (latest, best, final), or the checkpoint that `path` itself is.

    `latest` is the newest one whose files are whole, whatever the link says.
    """
    with _reading(path):
        is_checkpoint = (path / MANIFEST).exists() or _STEP_NAME.fullmatch(path.resolve().name)
    if is_checkpoint:
        return read_checkpoint(path)
    layout = RunLayout(path)
    paths = list_checkpoints(layout.checkpoints)
    if not paths and layout.run.exists():
        do = "train it until its first save (checkpoint.every_steps, checkpoint.every_epochs, or a stop)"
        raise UsageError("this run has no checkpoint", str(path), do)
    if not paths:
        what = "there is no checkpoint here" if path.exists() else "there is no such directory"
        raise UsageError(what, str(path), "name a run directory, or a directory like RUN/checkpoints/step_00000100")
    if word == "latest":
        newest, passed_over = newest_whole(paths)
        if newest is None:
            raise CheckpointError("no checkpoint of this run is whole", "\n         ".join(passed_over))
        return newest
    link = layout.checkpoints / word
    if not link.exists():
        links = [each for each in LINKS if (layout.checkpoints / each).exists()]
        kept = ", ".join([*links, *(each.name for each in paths)])
        raise UsageError(f"this run has no {word!r} checkpoint", str(link), f"there are: {kept}")
    return read_checkpoint(link.resolve())


def newest_whole(
    paths: list[Path], check: Callable[[Checkpoint], None] = check_files
) -> tuple[Checkpoint | None, list[str]]:
    """The first of these (newest first) that is whole, and what is wrong with those before it, by name."""
    passed_over: list[str] = []
    for path in paths:
        try:
            checkpoint = read_checkpoint(path)
            if path.name != step_name(checkpoint.step):  # its own step would be saved again, and find no place
                raise damaged(path, f"{MANIFEST} is of step {checkpoint.step}")
            check(checkpoint)
            return checkpoint, passed_over
        except CheckpointError as error:
            passed_over.append(f"{path.name}: {error.problems[0].what}")
    return None, passed_over


def damaged(path: Path, reason: str) -> CheckpointError:
    """The error for a checkpoint that cannot be used."""
    do = "use another checkpoint of the run; `--resume auto` takes the newest whole one"
    return CheckpointError(f"the checkpoint is damaged: {reason}", str(path), do)


def _digest(content: dict[str, Any]) -> int:
    """The manifest's own checksum: nothing else would notice a changed byte in it."""
    return zlib.crc32(_SORTED.encode(content).encode())


def _parse_manifest(content: dict[str, Any]) -> Manifest:
    if content.pop("crc32") != _digest(content):
        raise ValueError("it does not have its checksum")
    files = {}
    for name, entry in content["files"].items():
        if not _FILE_NAME.fullmatch(name):  # nothing outside the directory, whatever a manifest says
            raise ValueError(f"unexpected file {name!r}")
        files[name] = FileEntry(_whole(entry["bytes"]), _whole(entry["crc32"]))
    tensors = {str(name): str(file) for name, file in content["tensors"].items()}
    if STATE not in files or not set(tensors.values()) <= set(files):
        raise ValueError("files that it needs are not listed")
    identity = content["identity"]
    if not isinstance(identity, dict) or not isinstance(identity.get("values"), dict):
        raise ValueError("no identity")
    return Manifest(
        step=_whole(content["step"]),
        run=str(content["run"]),
        attempt=_whole(content["attempt"]),
        world_size=_whole(content["world_size"]),
        paceline=str(content["paceline"]),
        identity=identity,
        files=files,
        tensors=tensors,
        software=dict(content.get("software", {})),
        time=float(content["time"]),
        v=_whole(content["v"]),
    )


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def _checksum(file: Path) -> int:
    crc = 0
    with _reading(file), open(file, "rb", buffering=0) as stream:
        while chunk := stream.read(_CHUNK):
            crc = zlib.crc32(chunk, crc)
    return crc


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[None]:
    """What cannot be read is damage; what may not be read is for the operator to mend."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise damaged(file.parent, f"{file.name} is missing") from error
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            what = f"cannot read the checkpoint ({os.strerror(error.errno)})"
            raise UsageError(what, str(file), "use the account that wrote it, or change its permissions") from error
        raise damaged(file.parent, f"{file.name} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise damaged(file.parent, f"{file.name} is not JSON ({error})") from error
