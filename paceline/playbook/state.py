"""playbook.json: where a playbook stands, its phases with their commands, verdicts and evidence. Written by its owner after every change.

{"v": 1, "name": "p0-p3", "state": "running", "phases": [{"name": "P0", "kind": "train", "state": "done", "command": "paceline train …",
 "gate": [{"text": "failures == 0", "verdict": "met", "values": {"failures": 0}}], "evidence": [{"what": "loss", …}], …}], …}

A killed playbook is found as it was; the phase that was under way is run again, and goes on by its own resume.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import paceline
from paceline.errors import OccupiedError, UsageError
from paceline.files import Lock, finite, read_json, storage_errors, write_json
from paceline.playbook.results import Outcome

SCHEMA = 1
RECORD, LOCK = "playbook.json", ".owner.lock"
WAITING, RUNNING, DONE, SKIPPED, NOT_MET, FAILED, STOPPED = (
    "waiting",
    "running",
    "done",
    "skipped",
    "gate not met",
    "failed",
    "stopped",
)


@dataclass
class PhaseRecord:
    """Where one phase stands, and what it came to."""

    name: str
    kind: str
    about: str = ""
    state: str = WAITING
    reason: str = ""
    """why it is in this state, where that needs a word"""
    command: str = ""
    """as one would type it"""
    place: str = ""
    """what the command wrote, relative to the playbook's directory where it lies in it"""
    number: int = 1
    fingerprint: str = ""
    """of what is to be done; another one means that it is done again"""
    ground: dict[str, str] = field(default_factory=dict)
    """the machine and the code that it was done on, as ground.py says them"""
    moves: int = 0
    """how often it was begun anew because these were others"""
    note: str = ""
    """why it was done again, or where it was done, if not here"""
    settings: dict[str, Any] = field(default_factory=dict)
    uses: list[dict[str, Any]] = field(default_factory=list)
    """{"from": "P1.best", "file": …, "key": …, "value": …}; "by_hand" where something else was typed"""
    outdated: str = ""
    """why what it left is not of what is asked for now; it was not asked for this time, and is kept"""
    has_run: bool = False
    """its command has ended well; only the gate may be judged again"""
    attempts: int = 0
    started: float | None = None
    """of the last attempt"""
    seconds: float = 0.0
    """all attempts together, as far as somebody was there to count them"""
    exit_code: int | None = None
    gate: list[dict[str, Any]] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)
    evidence: list[dict[str, Any]] = field(default_factory=list)
    """{"what": …, "value": …, "from": …}"""
    links: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    """name of a result -> file and window"""
    untold: dict[str, str] = field(default_factory=dict)
    """name of a result that such a run cannot tell -> why"""
    missing: dict[str, str] = field(default_factory=dict)
    """name of a result that was not measured -> why"""
    tables: list[dict[str, Any]] = field(default_factory=list)
    """{"caption": …, "columns": […], "rows": [[…], …]}"""
    numbers: list[str] = field(default_factory=list)
    """names of results that an acceptance table lists, held to anything or not"""
    remedy: list[str] = field(default_factory=list)
    """where it failed: what to type next"""
    tail: list[str] = field(default_factory=list)
    """the last lines of standard error of a command that failed"""

    def take(self, outcome: Outcome, root: Path) -> None:
        self.results = finite(dict(outcome.results)) | {"seconds": round(self.seconds, 3)}
        self.evidence = [{"what": e.what, "value": e.value, "from": e.source} for e in outcome.evidence]
        self.links = {word: relative(path, root) for word, path in outcome.links.items()}
        self.sources, self.untold = dict(outcome.sources), dict(outcome.untold)
        self.missing = dict(outcome.missing)
        self.tables = [asdict(table) for table in outcome.tables]


@dataclass
class PlayRecord:
    """The content of playbook.json."""

    name: str
    about: str
    playbook: str
    """the file, as it was named"""
    argv: list[str]
    created: float
    state: str = RUNNING
    reason: str = ""
    verdict: str = ""
    """of a phase that judges all others"""
    updated: float = 0.0
    paceline: str = paceline.__version__
    machine: dict[str, Any] = field(default_factory=dict)
    phases: list[PhaseRecord] = field(default_factory=list)
    v: int = SCHEMA

    def phase(self, name: str) -> PhaseRecord:
        return next(phase for phase in self.phases if phase.name == name)


class Store:
    """The directory of one playbook, held by one process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = Lock(root / LOCK)

    def take(self) -> None:
        """Makes the directory and becomes its owner; refuses what belongs to somebody else."""
        with storage_errors(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            others = sorted(entry.name for entry in os.scandir(self.root) if not entry.name.startswith("."))
            if others and RECORD not in others:
                held = ", ".join(others[:5])
                what = f"the directory is not empty and not of a playbook (it holds {held})"
                raise OccupiedError(what, str(self.root), "choose an empty or new one with --out DIR")
            if not self._lock.acquire():
                do = "wait for it, or choose another place with --out DIR"
                raise OccupiedError("this playbook is running already", str(self.root), do)

    def release(self) -> None:
        self._lock.release()

    def load(self) -> PlayRecord | None:
        """What is there; None where nothing is."""
        return load_record(self.root)

    def save(self, record: PlayRecord) -> None:
        record.updated = time.time()
        with storage_errors(self.root):
            write_json(self.root / RECORD, finite(asdict(record)))


def load_record(root: Path) -> PlayRecord | None:
    """playbook.json of a directory; UsageError where it cannot be read."""
    path = root / RECORD
    try:
        content = read_json(path)
        if content["v"] > SCHEMA:
            what = f"this playbook was run by a newer Paceline (version {content['v']}, this one reads up to {SCHEMA})"
            raise UsageError(what, str(path), "install the newer version")
        phases = [PhaseRecord(**_known(PhaseRecord, phase)) for phase in content["phases"]]
        return PlayRecord(**_known(PlayRecord, content) | {"phases": phases})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        do = "restore it from a copy, or choose another place with --out DIR"
        raise UsageError(f"{RECORD} is damaged: it cannot be read ({error})", str(path), do) from error


def _known(kind: type, content: Mapping[str, Any]) -> dict[str, Any]:
    return {name: content[name] for name in kind.__dataclass_fields__ if name in content}  # type: ignore[attr-defined]


def relative(path: Path, root: Path) -> str:
    """As playbook.json holds it: a directory that is moved as a whole still finds its parts."""
    try:
        return str(path.relative_to(root))
    except ValueError:
        return str(path.absolute())
