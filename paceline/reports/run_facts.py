"""Everything a report about a run is made of, read from its directory at one moment. The pages are made from this alone.

    facts = read_run_facts(Path("runs/a"), results=result_rows, is_owned=True)

What cannot be read is missing here, and `gaps` says why: a report about a broken run is the one that is needed most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.config.changes import load_settings
from paceline.errors import UsageError
from paceline.files import read_json
from paceline.reports.damage import find_damage
from paceline.telemetry.checkpoints import LINKS, Checkpoint, list_checkpoints, read_checkpoint
from paceline.telemetry.reader import Row, Run, plan_starts, read_run

ResultRow = tuple[str, str, str]


@dataclass(frozen=True)
class RunFacts:
    """A run, and what lies around its tables."""

    run: Run
    results: Sequence[ResultRow]
    is_owned: bool | None
    """whether a process owns it now; None: that cannot be told"""
    now: float
    settings: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    environment: Row = field(default_factory=dict)
    checkpoints: Sequence[Checkpoint] = ()
    links: dict[str, str] = field(default_factory=dict)
    """latest, best, final -> the name of a checkpoint"""
    beats: Sequence[Row] = ()
    gaps: Sequence[str] = ()

    @property
    def starts(self) -> dict[int, int]:
        """attempt -> the step it began at"""
        return plan_starts(self.run.events)

    @property
    def plan(self) -> Row:
        """The newest plan; empty where no attempt got so far."""
        plans = self.run.events_of("plan")
        return plans[-1] if plans else {}


def read_run_facts(root: Path, results: Callable[[Run], list[ResultRow]], is_owned: bool | None) -> RunFacts:
    """Refuses a directory that is no run; whatever else is missing or damaged is a gap."""
    run = read_run(root)
    gaps: list[str] = []
    layout = run.layout
    origins = _read_object(layout.origins, gaps)
    gaps[:0] = find_damage(run, origins)
    checkpoints, links = _read_checkpoints(run, gaps)
    return RunFacts(
        run,
        results(run),
        is_owned,
        time.time(),
        load_settings(layout.config),
        {key: str(origin) for key, origin in origins.items()},
        _read_object(layout.environment, gaps),
        checkpoints,
        links,
        run.last_beats(),
        gaps,
    )


def _read_object(path: Path, gaps: list[str]) -> dict[str, Any]:
    try:
        content = read_json(path)
    except FileNotFoundError:
        gaps.append(f"there is no {path.name}")
        return {}
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        gaps.append(f"{path.name} is damaged")
        return {}
    return content


def _read_checkpoints(run: Run, gaps: list[str]) -> tuple[list[Checkpoint], dict[str, str]]:
    found = []
    for path in reversed(list_checkpoints(run.layout.checkpoints)):
        try:
            found.append(read_checkpoint(path))
        except UsageError as error:  # damaged, of a newer version, or taken away while we looked
            gaps.append(f"checkpoints/{path.name}: {error.problems[0].what}")
    links = {word: run.layout.checkpoints / word for word in LINKS}
    return found, {word: link.readlink().name for word, link in links.items() if link.is_symlink()}
