"""The transcripts of a LibriSpeech chapter: `*.trans.txt`, a line per utterance, its id first. No torch, no numpy.

84-121123-0000 GO DO YOU HEAR
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SUFFIX = ".trans.txt"


@dataclass(frozen=True)
class Transcript:
    """What is said in one utterance."""

    text: str
    place: str
    """file:line"""
    fault: str = ""
    """why it cannot be used"""


def read_transcripts(contents: Mapping[Path, bytes]) -> dict[str, Transcript]:
    """By id, from the files of a chapter. An id with two different texts has a fault, and none of them."""
    found: dict[str, Transcript] = {}
    for file, content in contents.items():
        # Lines end with a newline and with nothing else: Unicode has more line ends, and they are blanks here.
        for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
            if not line.strip():
                continue
            ident, transcript = _read_line(line, f"{file}:{number}")
            before = found.get(ident)
            if before is not None and before.text != transcript.text:
                what = f"two transcripts with different words: {Path(before.place).name}, {Path(transcript.place).name}"
                transcript = Transcript("", transcript.place, what)
            found[ident] = transcript
    return found


def _read_line(line: bytes, place: str) -> tuple[str, Transcript]:
    ident, *rest = line.split(None, 1)
    name = ident.decode(errors="replace")
    try:
        text = normalise(rest[0].decode()) if rest else ""
    except UnicodeDecodeError:
        return name, Transcript("", place, f"its transcript is not UTF-8: {Path(place).name}")
    return name, Transcript(text, place, "" if text else f"its transcript is empty: {Path(place).name}")


def normalise(text: str) -> str:
    """One way to write each letter (NFC), and single blanks for tabs, line ends and control characters of any kind."""
    plain = "".join(" " if unicodedata.category(letter) == "Cc" else letter for letter in text)
    return unicodedata.normalize("NFC", " ".join(plain.split()))
