"""What a preparation reads: the utterances of a LibriSpeech tree with their transcripts, and what is wrong with the others. No torch, no numpy.

LibriSpeech/train-clean-100/103/1240/103-1240-0000.flac      split, speaker, chapter, utterance
LibriSpeech/train-clean-100/103/1240/103-1240.trans.txt

Links are followed. A tree that was prepared here has its transcripts in its manifest.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from paceline.errors import DataError, UsageError
from paceline.recipes.csa.manifest import MAGIC, Manifest, read_manifest
from paceline.recipes.csa.prepare_errors import Fault
from paceline.recipes.csa.transcripts import SUFFIX, Transcript, read_transcripts
from paceline.recipes.progress import Progress, Report

AUDIO = (".flac", ".wav")
_LAYOUT = "SPLIT/SPEAKER/CHAPTER/*.flac"
_DEPTH = 3
_FARTHEST = 6
"""folders down, when it is to be said where audio was found instead"""


@dataclass(frozen=True)
class Source:
    """One utterance that can be tried."""

    id: str
    split: str
    speaker: str
    chapter: str
    path: Path
    transcript: str


@dataclass(frozen=True)
class Inputs:
    """What a tree holds."""

    sources: list[Source]
    ids: set[str]
    """of all audio files: also of those that have faults"""
    faults: list[Fault]
    notes: list[str]
    prepared: Manifest | None
    """where the tree was prepared here, itself"""


@dataclass
class _Found:
    root: Path
    report: Report
    sources: dict[str, list[Source]] = field(default_factory=dict)
    """by id: two files may claim one"""
    ids: set[str] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)
    astray: list[Path] = field(default_factory=list)
    """audio at other depths"""

    def fault(self, path: Path | str, reason: str) -> None:
        self.faults.append(Fault(os.path.relpath(path, self.root), reason))


def find_inputs(root: Path, report: Report = lambda _: None) -> Inputs:
    """UsageError where there is no such tree."""
    if not root.is_dir():
        what = "this is no directory" if root.exists() else "there is no such directory"
        raise UsageError(what, f"--input {root}", f"name the folder with the splits: {_LAYOUT} below it")
    prepared = _find_prepared(root)
    stored = {entry.id: Transcript(entry.transcript, "") for entry in prepared.entries} if prepared else {}
    found = _Found(root, report)
    _scan(found, root, (), stored)
    if not found.sources and not found.faults:
        raise _no_tree(root, found.astray)
    sources = []
    for ident, claims in found.sources.items():
        if len(claims) == 1:
            sources.append(claims[0])
            continue
        for claim in claims:
            others = ", ".join(os.path.relpath(other.path, root) for other in claims if other is not claim)
            found.fault(claim.path, f"two files with the id {ident}: the other is {others}")
    sources.sort(key=lambda source: source.id)
    notes = []
    if found.astray:
        notes.append(f"passed over: {len(found.astray):,} audio files that are not in {_LAYOUT}: {found.astray[0]}")
    return Inputs(sources, found.ids, found.faults, notes, prepared)


def find_manifests(folder: Path) -> list[Path]:
    """Those of prepared speech that lie directly in a folder, whatever they are called."""
    return [path for path in sorted(folder.glob("*.tsv")) if path.is_file() and _is_manifest(path)]


def _is_manifest(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC.encode()


def _find_prepared(root: Path) -> Manifest | None:
    paths = find_manifests(root)
    if not paths:
        return None
    manifest = read_manifest(paths[0])
    if not manifest.is_complete:
        do = "end that preparation first: type its command again, and then this one"
        raise DataError("this input is being prepared itself, and that has not ended", str(paths[0]), do)
    return manifest


def _scan(found: _Found, folder: Path, above: tuple[str, ...], stored: Mapping[str, Transcript]) -> None:
    """Looks through a folder that is as many folders down as `above` has names. Nothing is asked about single files but links: on a network
    file system that would take longer than to list them."""
    try:
        with os.scandir(folder) as entries:
            shown = sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda one: one.name)
    except OSError as error:
        found.fault(folder, f"the folder cannot be read: {error.strerror}")
        return
    files, folders = [], []
    for entry in shown:
        path = Path(entry.path)
        try:
            if entry.is_dir():
                folders.append(entry.name)
            elif entry.is_file() or not path.exists():  # what becomes of a link to nothing is said where it is read
                files.append(path)
            elif _is_audio(path) or _holds_transcripts(path):
                found.fault(path, "this is no file, but a pipe, a socket or a device")
        except OSError as error:
            found.fault(path, f"the link cannot be followed: {error.strerror}")
    if len(above) == _DEPTH:
        _read_chapter(found, files, above, stored)
    else:
        found.astray += [path for path in files if _is_audio(path)]
    if len(above) < _FARTHEST:
        for name in folders:
            _scan(found, folder / name, (*above, name), stored)


def _is_audio(path: Path) -> bool:
    return path.suffix.lower() in AUDIO


def _holds_transcripts(path: Path) -> bool:
    return path.name.lower().endswith(SUFFIX)


def _read_chapter(found: _Found, files: list[Path], above: tuple[str, ...], stored: Mapping[str, Transcript]) -> None:
    contents = {}
    for path in files:
        if _holds_transcripts(path):
            try:
                contents[path] = path.read_bytes()
            except OSError as error:
                found.fault(path, f"the transcripts cannot be read: {error.strerror}")
    written = read_transcripts(contents)
    audio = [path for path in files if _is_audio(path)]
    heard = {path.stem for path in audio}
    for path in audio:
        transcript = (
            written.get(path.stem) or stored.get(path.stem) or Transcript("", "", "there is no transcript for it")
        )
        fault = _name_fault(path) or transcript.fault
        if fault:
            found.fault(path, fault)
        else:
            split, speaker, chapter = above
            source = Source(path.stem, split, speaker, chapter, path, transcript.text)
            found.sources.setdefault(path.stem, []).append(source)
    for ident in sorted(written.keys() - heard):
        found.fault(written[ident].place, f"there is no audio for {ident}")
    found.ids |= heard
    found.report(Progress("listing", 0, 0, len(found.ids)))


def _name_fault(path: Path) -> str:
    """A line of a manifest must be able to hold it."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    return "" if str(path).isprintable() else "its name has tabs, line ends or the like in it"


def _no_tree(root: Path, astray: list[Path]) -> UsageError:
    what = f"there is no audio in the layout {_LAYOUT} here"
    do = f"name the folder with the splits: {_LAYOUT} below it"
    if astray:
        what += f" ({astray[0]} was found)"
        parents = astray[0].absolute().parents
        if astray[0].parent != root and len(parents) > _DEPTH:
            do = f"--input {parents[_DEPTH]}"
    return UsageError(what, f"--input {root}", do)
