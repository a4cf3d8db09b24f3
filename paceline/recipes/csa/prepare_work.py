"""What a process of a preparation does with one utterance: makes its file, or checks one that is there. No torch."""

from __future__ import annotations

import os
from dataclasses import dataclass

from paceline.files import write_bytes
from paceline.recipes.csa.audio import Unusable, checksum_of, digest_of, make_utterance, read_samples


@dataclass(frozen=True)
class Task:
    """One utterance: where it comes from, where it goes."""

    id: str
    source: str
    output: str
    rate: int
    top_db: float | None
    """None: it is not trimmed"""
    samples: int = 0
    checksum: str = ""
    digest: str = ""
    """what the manifest says of it, where it is to be checked"""


@dataclass(frozen=True)
class Outcome:
    """What became of it."""

    fault: str = ""
    """why there is none; nothing else counts then"""
    samples: int = 0
    cut: int = 0
    checksum: str = ""
    digest: str = ""
    """of the file it was made from"""


def make(task: Task) -> Outcome:
    """Writes the utterance's file; OSError where there is no room for it, which is nothing about the utterance."""
    try:
        content = _read(task.source)
        utterance = make_utterance(content, task.rate, task.top_db)
    except Unusable as error:
        return Outcome(str(error))
    # Not synced one by one, which takes longer than all the rest: the preparation syncs before it calls itself complete.
    try:
        write_bytes(task.output, utterance.flac, is_synced=False)
    except FileNotFoundError:  # the first of its chapter
        os.makedirs(os.path.dirname(task.output), exist_ok=True)
        write_bytes(task.output, utterance.flac, is_synced=False)
    return Outcome("", utterance.samples, utterance.cut, utterance.checksum, digest_of(content))


def check(task: Task) -> Outcome:
    """Whether the file that is there decodes to what the manifest says, and its source is still the same."""
    try:
        samples = read_samples(_read(task.output), task.rate)
        digest = digest_of(_read(task.source))
    except Unusable as error:
        return Outcome(str(error))
    if (len(samples), checksum_of(samples)) != (task.samples, task.checksum):
        return Outcome("what it decodes to is not what the manifest says")
    return Outcome("" if digest == task.digest else "its source has changed")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        reason = "it is a link to nothing" if os.path.islink(path) and not os.path.exists(path) else error.strerror
        raise Unusable(f"it cannot be read: {reason}") from None
