"""Utterances out of audio files: of a prepared corpus, or of LibriSpeech as it was published. Mono FLAC of 16 bits and 16 kHz.

    recordings = Recordings(entries, trim_db=None)
    recordings.hear(3, choose)

Of a crop only its part of the file is decoded. What is not as the manifest says (missing, another length, other samples, damaged) is an
error with the file's name: training goes on with nothing else in its place. Samples are compared with their checksum where all of them
are decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import DataError
from paceline.recipes.csa.audio import Samples, checksum_of, find_sound
from paceline.recipes.csa.audio_packages import import_audio
from paceline.recipes.csa.crops import Audio, Choose, Crop, Ints
from paceline.recipes.csa.data_config import RATE
from paceline.recipes.csa.manifest import Entry
from paceline.recipes.csa.prepare_inputs import Source

_STEP = np.float32(1 / 32768)
_PREPARE = "prepare it with `paceline prepare librispeech`, and set data.source=manifest"


class Recordings:
    """Files, each with its transcript."""

    def __init__(self, entries: Sequence[Entry], trim_db: float | None) -> None:
        self._entries = list(entries)
        self._trim_db = trim_db
        self.transcripts: Sequence[str] = [entry.transcript for entry in self._entries]
        self.samples: Ints = np.array([entry.samples for entry in self._entries], np.int64)

    def first(self, count: int) -> Recordings:
        return Recordings(self._entries[:count], self._trim_db)

    def hear(self, number: int, choose: Choose) -> tuple[Audio, Crop]:
        entry = self._entries[number]
        soundfile, _ = import_audio()
        try:
            with soundfile.SoundFile(entry.path) as file:
                _check(file, entry)
                if self._trim_db is None:
                    crop = choose(entry.samples)
                    samples = _read(file, crop, entry)
                else:
                    heard = _read(file, Crop(0, entry.samples, entry.samples), entry)
                    start, end = find_sound(heard, self._trim_db)
                    crop = choose(end - start)
                    samples = heard[start + crop.start : start + crop.start + crop.length]
        except (soundfile.LibsndfileError, OSError) as error:
            why = "is missing" if not entry.path.exists() else f"cannot be read: {error}"
            raise DataError(f"an audio file {why}", str(entry.path), _remedy(entry)) from error
        return samples.astype(np.float32) * _STEP, crop


def _check(file: Any, entry: Entry) -> None:
    found = (file.samplerate, file.channels, file.frames)
    if found != (RATE, 1, entry.samples):
        expected = f"{RATE} Hz, 1 channel, {entry.samples:,} samples"
        what = f"this is another file than was listed: {found[0]} Hz, {found[1]} channels, {found[2]:,} samples, not {expected}"
        raise DataError(what, str(entry.path), _remedy(entry))


def _read(file: Any, crop: Crop, entry: Entry) -> Samples:
    file.seek(crop.start)
    samples: Samples = file.read(crop.length, dtype="int16")
    is_whole = crop.length == entry.samples
    if len(samples) != crop.length:
        what = (
            f"this file is damaged: of {crop.length:,} samples from {crop.start:,} on, {len(samples):,} can be decoded"
        )
        raise DataError(what, str(entry.path), _remedy(entry))
    if is_whole and entry.checksum and checksum_of(samples) != entry.checksum:
        what = f"these are other samples than were listed: their checksum is not {entry.checksum}"
        raise DataError(what, str(entry.path), _remedy(entry))
    return samples


def _remedy(entry: Entry) -> str:
    again = "type the `paceline prepare librispeech` that wrote the manifest again: it makes anew what is not as it should be"
    return again if entry.checksum else _PREPARE


def list_sources(sources: Sequence[Source]) -> list[Entry]:
    """Of a tree as it was published: lengths from the files' heads."""
    return [_look_at(source) for source in sources]


def _look_at(source: Source) -> Entry:
    soundfile, _ = import_audio()
    entry = Entry(source.id, source.split, source.speaker, Path(source.path), 0, source.transcript, "")
    try:
        with soundfile.SoundFile(source.path) as file:
            found = (file.samplerate, file.channels, file.format)
            if found != (RATE, 1, "FLAC"):
                what = f"this is no mono FLAC of {RATE} Hz, but {found[2]} of {found[0]} Hz with {found[1]} channels"
                raise DataError(what, str(source.path), _PREPARE)
            return replace(entry, samples=file.frames)
    except soundfile.LibsndfileError as error:
        raise DataError(f"an audio file cannot be read: {error}", str(source.path), _PREPARE) from error
