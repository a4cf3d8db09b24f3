"""The record of a directory of token shards: what they were made from, how, and how far it has come. No torch, no numpy.

    {"v": 1, "state": "complete", "tokenizer": {"fingerprint": "bytes:1", …}, "parameters": {"validation_share": 0.01, …},
     "inputs": [{"name": "a.jsonl", "bytes": 9000, "sha256": "…"}],
     "parts": [{"start": [0, 0, 0], "end": [0, 9000, 20], "counts": {…}, "shards": {"train": {"file": "train-00000.tokens", …}, …}}]}

It is written before the first shard, then after every part: a part is there when the manifest says so, and not before. `start` and `end`
are places in the inputs (which input, where in it, how many lines or rows before), so that the next part, or a damaged one, begins there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from paceline.errors import DataError
from paceline.files import read_json, write_json
from paceline.recipes.nsa.data.shards import REMAKE, check_payload, check_tokenizer, read_header, sync_directory
from paceline.recipes.nsa.data.tokenizer import BYTES, Identity, Tokenizer, check_same, load_tokenizer

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
_SCHEMA = 1
UNFINISHED, COMPLETE = "unfinished", "complete"


class Place(NamedTuple):
    """Between two documents of the inputs."""

    input: int = 0
    """which of them"""
    offset: int = 0
    """bytes, or rows"""
    number: int = 0
    """lines, pieces or rows before it, for people"""


@dataclass(frozen=True)
class Input:
    """One file that documents come from, known by its content."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Shard:
    """One file of a part."""

    file: str
    bytes: int
    sha256: str
    """of what follows its header"""
    tokens: int
    documents: int


@dataclass(frozen=True)
class Part:
    """What became of the documents between two places: at most one shard per split."""

    start: Place
    end: Place
    counts: Mapping[str, int]
    """documents, tokens, empty, bad"""
    shards: Mapping[str, Shard]


@dataclass(frozen=True)
class Manifest:
    """What manifest.json says."""

    tokenizer: Identity
    parameters: Mapping[str, Any]
    inputs: tuple[Input, ...]
    source: Mapping[str, str]
    """where the inputs came from, for people and for fetching the rest"""
    parts: tuple[Part, ...] = ()
    state: str = UNFINISHED

    def with_part(self, part: Part) -> Manifest:
        """The same with this part after all others."""
        return replace(self, parts=(*self.parts, part))

    @property
    def end(self) -> Place:
        """Where the next part begins."""
        return self.parts[-1].end if self.parts else Place()

    def counts(self) -> dict[str, int]:
        """Over all parts, and of each split."""
        total: dict[str, int] = dict.fromkeys(("documents", "tokens", "empty", "bad"), 0)
        for part in self.parts:
            for name, value in part.counts.items():
                total[name] = total.get(name, 0) + value
            for split, shard in part.shards.items():
                total[f"{split}_documents"] = total.get(f"{split}_documents", 0) + shard.documents
                total[f"{split}_tokens"] = total.get(f"{split}_tokens", 0) + shard.tokens
        return total

    def shards(self, split: str) -> list[Shard]:
        return [part.shards[split] for part in self.parts if split in part.shards]

    def digest(self) -> str:
        """Of the tokens, and of nothing else: the same wherever the directory lies and whatever it was made from."""
        shards = [[split, shard.sha256] for part in self.parts for split, shard in sorted(part.shards.items())]
        text = json.dumps([self.tokenizer.fingerprint, shards])
        return hashlib.sha256(text.encode()).hexdigest()


def write_manifest(directory: Path, manifest: Manifest) -> None:
    record = asdict(manifest) | {"counts": manifest.counts()}
    write_json(directory / MANIFEST, {"v": _SCHEMA} | record)
    sync_directory(directory)


def read_manifest(directory: Path) -> Manifest | None:
    """None where there is none; DataError for one that cannot be understood."""
    path = directory / MANIFEST
    try:
        content = read_json(path)
        if content["v"] != _SCHEMA:
            what = f"this manifest has version {content['v']}, and this Paceline reads {_SCHEMA}"
            raise DataError(what, str(path), "prepare the text again, into another --out DIR")
        return Manifest(
            Identity(**content["tokenizer"]),
            content["parameters"],
            tuple(Input(**one) for one in content["inputs"]),
            content["source"],
            tuple(_part(one) for one in content["parts"]),
            content["state"],
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DataError(f"the manifest cannot be read ({error.strerror})", str(path), "check the disk") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        what = f"this is no manifest of token shards ({type(error).__name__}: {error})"
        raise DataError(what, str(path), "prepare the text again, into another --out DIR") from error


def _part(content: Mapping[str, Any]) -> Part:
    shards = {split: Shard(**shard) for split, shard in content["shards"].items()}
    return Part(Place(*content["start"]), Place(*content["end"]), content["counts"], shards)


def load_manifest(directory: Path, where: str) -> Manifest:
    """Of a directory that can be trained on: finished, with both splits, and every shard there in its full length.

    What is inside the shards is not read: the preparation has done so, and does it again when it is typed again.
    """
    do = "type `paceline prepare fineweb --from FILES`, and give the directory it names; or set data.source=text"
    if not directory.is_dir():
        raise DataError("there is no such directory of token shards", where, do)
    manifest = read_manifest(directory)
    if manifest is None:
        raise DataError(f"this directory has no {MANIFEST}: it holds no token shards", where, do)
    if manifest.state != COMPLETE:
        what = f"this preparation has not ended: {manifest.counts()['tokens']:,} tokens so far"
        raise DataError(what, where, "type the same `paceline prepare` again: it goes on where it stopped")
    for part in manifest.parts:
        for shard in part.shards.values():
            check_shard(directory, shard, manifest.tokenizer)
    return manifest


def check_shard(directory: Path, shard: Shard, identity: Identity, *, is_thorough: bool = False) -> None:
    """DataError where the file is not the one that the manifest names; `is_thorough` reads all of it."""
    path = directory / shard.file
    header = read_header(path)
    check_tokenizer(header, identity, path)
    if header.payload.hex() != shard.sha256:
        what = "this token shard is not the one that the manifest names: its checksum is another one"
        raise DataError(what, str(path), "type the same `paceline prepare` again: it makes that shard anew")
    if is_thorough:
        check_payload(path, header)


def load_stored_tokenizer(directory: Path, manifest: Manifest) -> Tokenizer:
    """The tokenizer that made the shards; DataError where none, or another one, lies in its place."""
    stored = manifest.tokenizer
    name = BYTES if stored.kind == BYTES else str(directory / TOKENIZER)
    try:
        tokenizer = load_tokenizer(name)
    except DataError as error:
        raise DataError(error.problems[0].what, name, REMAKE) from error
    check_same(tokenizer.identity, stored, name, str(directory / MANIFEST), REMAKE)
    return tokenizer
