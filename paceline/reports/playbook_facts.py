"""Everything a report about a playbook is made of, read from its playbook.json at one moment. The page is made from this alone.

    facts = read_playbook_facts(Path("plays/p0-p3"), is_owned=False)

A field that is missing or of another type is unknown here, and `gaps` names it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.reports.amounts import text
from paceline.reports.records import objects_in, read_versioned
from paceline.telemetry.numbers import is_finite

PLAYBOOK_FILE = "playbook.json"
SCHEMA = 1
"""the newest playbook.json that is understood here"""


@dataclass(frozen=True)
class PhaseFacts:
    """Where one phase stands, and what it came to."""

    name: str
    kind: str
    state: str
    record: Mapping[str, Any]

    @property
    def seconds(self) -> float | None:
        found = self.record.get("seconds")
        return found if is_finite(found) and found > 0 else None

    def objects(self, name: str) -> list[Mapping[str, Any]]:
        """A list of objects of its record; one object alone is a list of one."""
        found = self.record.get(name)
        if isinstance(found, dict):
            return [found] if found else []
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

    def part(self, name: str) -> Mapping[str, Any]:
        found = self.record.get(name)
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class PlaybookFacts:
    """A playbook, as far as it has come."""

    root: Path
    record: Mapping[str, Any]
    phases: Sequence[PhaseFacts]
    is_owned: bool | None = None
    """whether a process runs it now; None: that cannot be told"""
    now: float = 0.0
    gaps: Sequence[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return text(self.record.get("name")) or self.root.absolute().name

    @property
    def state(self) -> str:
        return text(self.record.get("state")) or "unknown"


def read_playbook_facts(root: Path, is_owned: bool | None = None) -> PlaybookFacts:
    """Refuses a directory whose playbook.json cannot be read or is of a newer version."""
    return build_playbook_facts(root, read_versioned(root / PLAYBOOK_FILE, SCHEMA, "playbook"), is_owned)


def build_playbook_facts(root: Path, record: Mapping[str, Any], is_owned: bool | None = None) -> PlaybookFacts:
    gaps: list[str] = []
    phases = [
        PhaseFacts(
            text(each.get("name")) or f"phase {number}",
            text(each.get("kind")) or "unknown",
            text(each.get("state")) or "unknown",
            each,
        )
        for number, each in enumerate(objects_in(record, "phases", PLAYBOOK_FILE, gaps), 1)
    ]
    return PlaybookFacts(root, record, phases, is_owned, time.time(), gaps)
