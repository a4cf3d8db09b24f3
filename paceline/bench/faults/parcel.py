"""What is worth sending of cells that were not understood: one archive of a few kB each, with what they said and did.

pack(Path("runs/faults"), {"slow_data_10-003": record, …})   -> Path("runs/faults/wrong.tar.gz")

Of every file its end: pulses, events, metrics, beats, the incidents' reports and stacks, what the injector did, what was printed.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_PATTERNS = (
    "fault.jsonl",
    "pulses.jsonl",
    "console.log",
    "**/run.json",
    "**/events.jsonl",
    "**/metrics.csv",
    "**/heartbeat/*.jsonl",
    "**/incidents/*/*",
    "**/incidents/*/stacks/*",
    "**/logs/*.log",
)
_MOST_BYTES = 1 << 15
_MOST_PULSES_BYTES = 1 << 21
"""of one file; pulses repeat themselves, and become a tenth of that"""


def pack(out: Path, wrong: Mapping[str, Mapping[str, Any]]) -> Path:
    """Writes it anew; the names are those of the cells."""
    path = out / "wrong.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, record in wrong.items():
            _add(archive, f"{name}/record.json", json.dumps(record, indent=1).encode())
            for file in _files(out / "cells" / name):
                _add(archive, f"{name}/{file.relative_to(out / 'cells' / name)}", _end_of(file))
    return path


def _files(place: Path) -> Iterator[Path]:
    found = {file for pattern in _PATTERNS for file in place.glob(pattern) if file.is_file()}
    yield from sorted(found)


def _end_of(file: Path) -> bytes:
    most = _MOST_PULSES_BYTES if file.name == "pulses.jsonl" else _MOST_BYTES
    with open(file, "rb") as stream:
        stream.seek(max(0, file.stat().st_size - most))
        return stream.read()


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))
