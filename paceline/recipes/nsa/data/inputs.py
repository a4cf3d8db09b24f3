"""What a preparation reads: the local files that somebody named, in a fixed order, each known by its content. No torch, no numpy.

find_inputs([Path("texts"), Path("more.jsonl")])      directories are searched; a file that is named twice is read once
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import DataError, UsageError
from paceline.recipes.nsa.data.documents import SUFFIXES, Origin, local_origin
from paceline.recipes.nsa.data.manifest import Input

_BLOCK_BYTES = 2**22


@dataclass(frozen=True)
class Inputs:
    """Files, as the manifest knows them and as they are read."""

    known: tuple[Input, ...]
    origins: tuple[Origin, ...]
    source: dict[str, str]
    notes: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        return sum(one.bytes for one in self.known)


def find_inputs(given: Sequence[Path], out: Path, report: Callable[[int, int], None]) -> Inputs:
    """Every file below what was given, with the digest of its content; `report` is told how many bytes of how many are read."""
    files, num_others = _list_files(given, out)
    if not files:
        what = "there is nothing to prepare: no file with one of the endings " + " ".join(sorted(SUFFIXES))
        raise DataError(what, ", ".join(map(str, given)), "name JSONL, parquet or text files, or directories with some")
    total = sum(file.stat().st_size for file in files)
    known, done = [], 0
    for file in files:
        known.append(_digest(file, lambda here, before=done: report(before + here, total)))  # type: ignore[misc]
        done += known[-1].bytes
    if not total:
        what = f"all {len(files)} files are empty" if len(files) > 1 else "the file is empty"
        raise DataError(what, ", ".join(map(str, given)), "name files with text in them")
    num_empty = sum(not one.bytes for one in known)
    notes = [f"{num_empty} empty files"] if num_empty else []
    notes += [f"passed over: {num_others} files with other endings"] if num_others else []
    source = {"from": ", ".join(map(str, given))}
    return Inputs(tuple(known), tuple(map(local_origin, files)), source, tuple(notes))


def _list_files(given: Sequence[Path], out: Path) -> tuple[list[Path], int]:
    """In the order given, directories in the order of names; and how many others lie in the directories."""
    files: dict[Path, Path] = {}
    num_others = 0
    for path in given:
        if path.is_dir():
            inside = [Path(parent) / name for parent, _, names in os.walk(path, onerror=_refuse) for name in names]
            # What was written before is no input; a directory that lies in `out` itself was meant.
            if path.resolve() in out.resolve().parents:
                inside = [file for file in inside if out.resolve() not in file.resolve().parents]
            inside.sort()
            wanted = [file for file in inside if file.suffix.lower() in SUFFIXES]
            num_others += len(inside) - len(wanted)
        elif not path.exists():
            raise UsageError("there is no such file or directory", f"--from {path}", "check the path")
        elif path.suffix.lower() not in SUFFIXES:
            do = f"give a file that ends in {' '.join(sorted(SUFFIXES))}"
            raise UsageError(f"what kind of file is this? Its name ends in {path.suffix!r}", f"--from {path}", do)
        else:
            wanted = [path]
        for file in wanted:
            files.setdefault(file.resolve(), file)
    return list(files.values()), num_others


def _refuse(error: OSError) -> None:
    raise DataError(
        f"a directory cannot be read ({error.strerror})", str(error.filename), "chmod u+rx it, or leave it out"
    )


def _digest(file: Path, report: Callable[[int], None]) -> Input:
    digest, size = hashlib.sha256(), 0
    try:
        with open(file, "rb") as stream:
            while block := stream.read(_BLOCK_BYTES):
                digest.update(block)
                size += len(block)
                report(size)
    except OSError as error:
        raise DataError(
            f"the file cannot be read ({error.strerror})", str(file), "chmod u+r it, or leave it out"
        ) from error
    return Input(str(file), size, digest.hexdigest())
