"""The ledger of a triage: a line per trial, so that the same command goes on where it was killed.

ledger = Ledger(out / "ledger.jsonl", key="9f2c…")     # what makes results comparable: subject, code, machine, length
ledger.find("rung", "compression off", settings)    -> Entry(…) or None
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.files import LineWriter, finite, read_records
from paceline.triage.verdict import Verdict


@dataclass(frozen=True)
class Entry:
    """One trial."""

    role: str
    """reproduce, rung, back (the cure switched off again), again (and on)"""
    name: str
    """of the rung; empty for the reproduction"""
    settings: Mapping[str, Any]
    status: str
    what: str
    samples_per_s: float | None
    last_step: int | None
    directory: str
    seconds: float

    @property
    def verdict(self) -> Verdict:
        return Verdict(self.status, self.what, self.samples_per_s, self.last_step)


class Ledger:
    """Open for one process."""

    def __init__(self, path: Path, key: str) -> None:
        self._key = key
        known = read_records(path) if path.exists() else []
        self._entries = [_entry(record) for record in known if record.get("key") == key]
        self.num_foreign = len(known) - len(self._entries)
        """trials of another code, machine, subject or length, which count for nothing"""
        self._writer = LineWriter(path)

    def find(self, role: str, name: str, settings: Mapping[str, Any]) -> Entry | None:
        found = [entry for entry in self._entries if (entry.role, entry.name) == (role, name)]
        return next((entry for entry in reversed(found) if dict(entry.settings) == dict(settings)), None)

    def add(self, entry: Entry) -> None:
        self._writer.write_record(finite({"key": self._key} | asdict(entry)))
        self._entries.append(entry)

    def close(self) -> None:
        self._writer.close()


def _entry(record: Mapping[str, Any]) -> Entry:
    return Entry(**{name: record[name] for name in Entry.__dataclass_fields__})
