"""What a diagnosis rests on: which files of a run there were to read, and which are missing, damaged, or may not be read.

list_sources(run)   -> Sources(read=("its events", "its heartbeats"), gaps=("there is no metrics.csv",))
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline.files import find_damaged_records, read_records
from paceline.telemetry.layout import SCHEMA
from paceline.telemetry.reader import Run, is_known
from paceline.telemetry.run_file import FOREIGN_RECIPE, SDK_RECIPE
from paceline.telemetry.tables import find_damaged_lines

_SHOWN = 20
"""characters of what stands for a version: it may be anything"""


@dataclass(frozen=True)
class Sources:
    """For a sentence."""

    read: tuple[str, ...]
    gaps: tuple[str, ...]


def reads_logs(run: Run) -> bool:
    """Logs are asked how a run failed; of one that ended as it should they have nothing to say, and a foreign loop has none."""
    return run.run.state in ("running", "failed") and run.run.recipe != SDK_RECIPE


def list_sources(run: Run) -> Sources:
    read: list[str] = []
    gaps: list[str] = []
    files: tuple[tuple[str, Path, bool, Callable[[Path], list[int]]], ...] = (
        ("its events", run.layout.events, bool(run.events), find_damaged_records),
        ("its metrics", run.layout.metrics, bool(run.metrics), find_damaged_lines),
    )
    for name, path, has_records, find_damaged in files:
        if not path.exists():
            gaps.append(f"there is no {path.name}")
            continue
        read += [name] if has_records else []
        damaged = len(find_damaged(path))
        if damaged:
            gaps.append(f"{path.name}: {_count_lines(damaged)} damaged and left out")
        newer = _find_newer(path) if path == run.layout.events else None
        gaps += [f"{path.name}: {newer}"] if newer else []
        if not (damaged or newer or has_records):
            gaps.append(f"there is nothing in {path.name}")
    world_size = run.run.attempts[-1].world_size if run.run.attempts else 0
    beats = [rank for rank in range(world_size) if run.newest_beats(rank)]
    read += ["its heartbeats"] if beats else []
    if len(beats) < world_size and run.run.recipe != FOREIGN_RECIPE:  # somebody's script has none
        gaps.append(f"heartbeats are there of {len(beats)} of {'1 rank' if world_size == 1 else f'{world_size} ranks'}")
    gaps += [gap for rank in range(world_size) for gap in _find_gaps(run.layout.heartbeat(rank))]
    if reads_logs(run):
        logs = sorted(run.layout.launcher_log.parent.glob("*.log"))
        closed = [path for path in logs if not os.access(path, os.R_OK)]
        read += ["its logs"] if len(logs) > len(closed) else []
        gaps += [f"logs/{path.name} may not be read" for path in closed]
        gaps += ["there is nothing in logs/"] if not logs else []
    return Sources(tuple(read), tuple(gaps))


def _find_gaps(path: Path) -> list[str]:
    """Of a rank's heartbeats."""
    if not path.exists():
        return []
    damaged, newer = len(find_damaged_records(path)), _find_newer(path)
    found = [f"{_count_lines(damaged)} damaged and left out"] if damaged else []
    return [f"heartbeat/{path.name}: {gap}" for gap in (*found, newer) if gap]


def _find_newer(path: Path) -> str | None:
    """What this version passes over, because it cannot know what it means."""
    versions = [record["v"] for record in read_records(path) if not is_known(record)]
    if not versions:
        return None
    named = ", ".join(sorted({str(version)[:_SHOWN] for version in versions}))
    return f"{_count_lines(len(versions))} of another version ({named}; this one reads up to {SCHEMA}) and left out"


def _count_lines(number: int) -> str:
    return "1 line of it is" if number == 1 else f"{number} lines of it are"
