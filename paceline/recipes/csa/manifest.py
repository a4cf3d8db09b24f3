"""The manifest of a prepared speech corpus: a TSV with the parameters in its head and one utterance per line. No torch, no numpy.

    # paceline speech manifest
    # version=1
    # state=complete
    # utterances=100
    # rate=16000
    # trim=true
    # top_db=60
    id  split  speaker  path  samples  duration  transcript  checksum  cut  source
    367-130732-0000  test-other  367  test-other/367/130732/367-130732-0000.flac  124880  7.805  LOBSTERS AND …  9f0c…  512  77ab…

Paths are relative to the manifest's folder; `checksum` is that of the decoded samples, `source` that of the file they were made from, `cut`
the samples that trimming took away. While it is being prepared a manifest says state=unfinished, and lines are appended as utterances
are there: it is valid at any instant, less a last line without its end. A finished one is sorted by id and says how many lines it has.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.errors import DataError
from paceline.files import write_text

MANIFEST = "manifest.tsv"
"""its usual name"""
MAGIC = "# paceline speech manifest"
_VERSION = 1
COLUMNS = ("id", "split", "speaker", "path", "samples", "duration", "transcript", "checksum", "cut", "source")
_UNFINISHED, _COMPLETE = "unfinished", "complete"
_AGAIN = "prepare the speech again, with `paceline prepare librispeech` into another --output DIR"
_GO_ON = "type the same `paceline prepare librispeech` again: it goes on where it stopped"


@dataclass(frozen=True)
class Entry:
    """One utterance."""

    id: str
    split: str
    speaker: str
    path: Path
    """the audio file; the manifest's folder is part of it"""
    samples: int
    transcript: str
    checksum: str
    """of the decoded samples"""
    cut: int = 0
    """samples that trimming took away, at both ends together"""
    source: str = ""
    """checksum of the file it was made from"""


@dataclass(frozen=True)
class Manifest:
    """What a manifest says."""

    entries: list[Entry]
    rate: int
    is_trimmed: bool = False
    top_db: float | None = None
    """what trimming called silence: so much below the loudest moment"""
    is_complete: bool = True
    """False: its preparation has not ended"""

    @property
    def digest(self) -> str:
        """Of what training sees, and of nothing else: the same wherever the corpus lies."""
        rows = [(e.id, e.split, e.speaker, e.samples, e.transcript, e.checksum) for e in sorted(self.entries, key=_id)]
        text = json.dumps([self.rate, rows], ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def seconds(self) -> float:
        return sum(entry.samples for entry in self.entries) / self.rate

    @property
    def cut_seconds(self) -> float:
        return sum(entry.cut for entry in self.entries) / self.rate


def _id(entry: Entry) -> str:
    return entry.id


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Replaces it atomically, sorted by id."""
    entries = sorted(manifest.entries, key=_id)
    lines = [*_head(manifest), *(entry_line(path.parent, manifest.rate, entry) for entry in entries), ""]
    write_text(path, "\n".join(lines))


def _head(manifest: Manifest) -> Iterable[str]:
    values = {"version": _VERSION, "state": _COMPLETE if manifest.is_complete else _UNFINISHED}
    if manifest.is_complete:
        values["utterances"] = len(manifest.entries)
    top_db = "none" if manifest.top_db is None else f"{manifest.top_db:g}"
    values |= {"rate": manifest.rate, "trim": str(manifest.is_trimmed).lower(), "top_db": top_db}
    return [MAGIC, *(f"# {name}={value}" for name, value in values.items()), "\t".join(COLUMNS)]


def entry_line(folder: Path, rate: int, entry: Entry) -> str:
    """An utterance as its line, without the line's end."""
    fields = (
        entry.id,
        entry.split,
        entry.speaker,
        _relative(entry.path, folder),
        str(entry.samples),
        f"{entry.samples / rate:.6f}",
        entry.transcript,
        entry.checksum,
        str(entry.cut),
        entry.source,
    )
    assert not any("\t" in field or "\n" in field for field in fields), fields
    return "\t".join(fields)


def _relative(path: Path, folder: Path) -> str:
    inside, above = path.as_posix(), f"{folder.as_posix()}/"
    return inside.removeprefix(above) if inside.startswith(above) else Path(os.path.relpath(path, folder)).as_posix()


def read_manifest(path: Path) -> Manifest:
    """DataError where it is missing, damaged, or no manifest of speech; whether the audio files are there is not looked at."""
    try:
        content, end, torn = path.read_bytes().rpartition(b"\n")
        lines = (content + end).decode().split("\n")[:-1]
    except FileNotFoundError:
        raise DataError("there is no such manifest", str(path), "check the path") from None
    except OSError as error:
        raise DataError(f"the manifest cannot be read ({error.strerror})", str(path), "check the path") from error
    except UnicodeDecodeError as error:
        raise DataError(f"this is no manifest of speech: {error.reason}", str(path), _AGAIN) from error
    head = _read_head(path, lines)
    is_complete = head["state"] == _COMPLETE
    first = len(head) + 2
    entries, numbers = list[Entry](), dict[str, int]()
    for number, line in enumerate(lines[first:], first + 1):
        entry = _read_entry(path, number, line)
        if entry.id in numbers:
            what = f"the utterance {entry.id} is there twice: in lines {numbers[entry.id]} and {number}"
            raise DataError(what, f"{path}:{number}", _AGAIN)
        numbers[entry.id] = number
        entries.append(entry)
    if is_complete and (torn or str(len(entries)) != head.get("utterances")):
        what = f"this manifest is cut off: it says {head.get('utterances')} utterances, and {len(entries)} are there"
        raise DataError(what, str(path), "copy it again, or " + _AGAIN)
    top_db = None if head["top_db"] == "none" else float(head["top_db"])
    return Manifest(entries, int(head["rate"]), head["trim"] == "true", top_db, is_complete)


def _read_head(path: Path, lines: list[str]) -> Mapping[str, str]:
    if not lines or lines[0] != MAGIC:
        raise DataError("this is no manifest of speech: its first line is another one", str(path), _AGAIN)
    head = {}
    for line in lines[1:]:
        if not line.startswith("# "):
            break
        name, _, value = line.removeprefix("# ").partition("=")
        head[name] = value
    if head.get("version") != str(_VERSION):
        what = f"this manifest has version {head.get('version')}, and this Paceline reads {_VERSION}"
        raise DataError(what, str(path), _AGAIN)
    if lines[len(head) + 1 :][:1] != ["\t".join(COLUMNS)]:
        raise DataError(f"the columns of this manifest are not {' '.join(COLUMNS)}", str(path), _AGAIN)
    try:
        known = head["state"] in (_UNFINISHED, _COMPLETE) and head["trim"] in ("true", "false")
        is_sound = known and int(head["rate"]) > 0
        is_sound &= float(head["top_db"]) > 0 if head["trim"] == "true" else head["top_db"] == "none"
    except (KeyError, ValueError):
        is_sound = False
    if not is_sound:
        shown = ", ".join(f"{name}={value}" for name, value in head.items())
        raise DataError(f"the parameters of this manifest cannot be understood: {shown}", str(path), _AGAIN)
    return head


def _read_entry(path: Path, number: int, line: str) -> Entry:
    fields = line.split("\t")
    try:
        if len(fields) != len(COLUMNS):
            raise ValueError(f"{len(fields)} columns instead of {len(COLUMNS)}")
        ident, split, speaker, place, samples, _, transcript, checksum, cut, source = fields
        if not (ident and place and int(samples) > 0 and transcript.strip()):
            raise ValueError("an id, a path, samples and a transcript are needed")
        return Entry(ident, split, speaker, path.parent / place, int(samples), transcript, checksum, int(cut), source)
    except ValueError as error:
        raise DataError(f"this line of the manifest is damaged: {error}", f"{path}:{number}", _AGAIN) from error


def load_manifest(path: Path, where: str) -> Manifest:
    """Of a corpus that can be trained on: finished, not empty, with every audio file there. What is in them is not read."""
    manifest = read_manifest(path)
    if not manifest.is_complete:
        what = f"this preparation has not ended: {len(manifest.entries):,} utterances so far"
        raise DataError(what, where, _GO_ON)
    if not manifest.entries:
        raise DataError("this manifest has no utterances", where, _AGAIN)
    missing = [entry.path for entry in manifest.entries if not entry.path.is_file()]
    if missing:
        what = (
            f"{len(missing):,} of the {len(manifest.entries):,} audio files of this manifest are missing: {missing[0]}"
        )
        raise DataError(what, where, f"{_GO_ON}; or keep the manifest beside its files")
    # In the order that the digest is of: whoever sorted the lines otherwise has the same corpus, with the same samples at the same numbers.
    return replace(manifest, entries=sorted(manifest.entries, key=_id))
