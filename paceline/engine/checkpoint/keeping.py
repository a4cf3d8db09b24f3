"""Order in a run's checkpoints: which of them stay, which have a link, and what killed saves left behind.

.saving-step_00001000-2-7    written by the ranks        .removing-…    on its way out        .replaced-…    until the new one is there
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from paceline.errors import CheckpointError, UsageError
from paceline.telemetry.checkpoints import LINKS, MANIFEST, list_step_names, read_checkpoint, step_name
from paceline.telemetry.events import EventLog
from paceline.telemetry.layout import RunLayout

REPLACED = ".replaced-"
_SAVING, _REMOVING = ".saving-", ".removing-"


def saving_directory(layout: RunLayout, step: int, attempt: int, count: int) -> Path:
    """Where the ranks of one attempt collect the files of one save."""
    return layout.checkpoints / f"{_SAVING}{step_name(step)}-{attempt}-{count}"


def refresh_links(layout: RunLayout, step: int, best_step: int | None, final_step: int | None = None) -> dict[str, str]:
    """Points the links to where they belong, and takes away those whose checkpoint is gone; which could not be set, and why.

    Links are for people: nothing is resumed from them, and a file system without them is no reason to stop.
    """
    unset = {}
    checkpoints = str(layout.checkpoints)
    for word, target in (("latest", step), ("best", best_step), ("final", final_step)):
        try:
            _link(checkpoints, word, target)
        except OSError as error:
            unset[word] = error.strerror or str(error)
    return unset


def _link(checkpoints: str, word: str, step: int | None) -> None:
    path, name = f"{checkpoints}/{word}", step_name(step) if step is not None else ""
    there = _read_link(path)
    if step is not None and os.path.isdir(f"{checkpoints}/{name}"):
        if there == name:
            return
        temporary = f"{checkpoints}/.{word}.{os.getpid()}"
        try:
            os.symlink(name, temporary)
        except FileExistsError:
            os.unlink(temporary)
            os.symlink(name, temporary)
        try:
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
    elif there is not None and not os.path.exists(path):
        os.unlink(path)


def _read_link(path: str) -> str | None:
    """Where it leads; None: there is no link."""
    try:
        return os.readlink(path)
    except OSError:
        return None


def warn_unset(events: EventLog, layout: RunLayout, unset: Mapping[str, str]) -> None:
    """Says which links could not be set."""
    if unset:
        words = "; ".join(f"{word}: {reason}" for word, reason in unset.items())
        events.write(
            "warning", what=f"a link to a checkpoint could not be set ({words})", where=str(layout.checkpoints)
        )


class Retention:
    """Which of a run's checkpoints stay: the newest `keep`, the best, and those that a link names. A damaged one counts for nothing and stays."""

    def __init__(self, layout: RunLayout, keep: int) -> None:
        self._checkpoints = str(layout.checkpoints)
        self._keep = keep
        self._read: dict[str, tuple[tuple[int, ...], int | None]] = {}
        """by name: what tells its manifest from another, and its step; None: it is damaged"""

    def retire(self, saved_step: int, best_step: int | None) -> list[int]:
        """Removes all others; their steps. `saved_step` was written by this process just now."""
        names = list_step_names(self._checkpoints)
        self._read = {name: known for name, known in self._read.items() if name in names}
        saved = step_name(saved_step)
        self._read[saved] = self._look(saved), saved_step
        steps = {name: saved_step if name == saved else self._step_of(name) for name in names}
        whole = [(step, name) for name, step in steps.items() if step is not None]
        spared = {step_name(best_step)} if best_step is not None else set()
        if whole[self._keep :]:
            links = (_read_link(f"{self._checkpoints}/{word}") for word in LINKS)
            spared |= {os.path.basename(link) for link in links if link is not None}
        removed = []
        for step, name in whole[self._keep :]:
            if name not in spared:
                _remove(self._checkpoints, name)
                removed.append(step)
        return removed

    def _step_of(self, name: str) -> int | None:
        """Reads a manifest that is new or has changed; every other one was read at an earlier save."""
        try:
            mark = self._look(name)
        except OSError:
            return None
        known, step = self._read.get(name, ((), None))
        if known != mark:
            try:
                step = read_checkpoint(Path(self._checkpoints, name)).step
            except (CheckpointError, UsageError) as error:
                if isinstance(error.__cause__, OSError):
                    return None  # it cannot be read at this moment: perhaps it can at the next save
                step = None
            self._read[name] = mark, step
        return step

    def _look(self, name: str) -> tuple[int, ...]:
        found = os.stat(f"{self._checkpoints}/{name}/{MANIFEST}")
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _remove(checkpoints: str, name: str) -> None:
    # Out of sight first: what is half removed must not look like a damaged checkpoint.
    hidden = f"{checkpoints}/{_REMOVING}{name}"
    if os.path.exists(hidden):
        shutil.rmtree(hidden, ignore_errors=True)
    os.rename(f"{checkpoints}/{name}", hidden)
    try:
        for file in os.listdir(hidden):
            os.unlink(f"{hidden}/{file}")
        os.rmdir(hidden)
    except OSError:  # somebody put a directory there, or it must not be touched
        shutil.rmtree(hidden, ignore_errors=True)


def remove_leftovers(layout: RunLayout) -> None:
    """Takes away what killed saves and removals left, and puts back what was to be replaced; when no save is under way."""
    for path in layout.checkpoints.glob(f"{REPLACED}*"):
        target = path.with_name(path.name.removeprefix(REPLACED))
        if target.exists():
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.rename(path, target)
    for prefix in (_SAVING, _REMOVING):
        for path in layout.checkpoints.glob(f"{prefix}*"):
            shutil.rmtree(path, ignore_errors=True)
    for word in LINKS:
        for path in layout.checkpoints.glob(f".{word}.*"):
            path.unlink(missing_ok=True)
