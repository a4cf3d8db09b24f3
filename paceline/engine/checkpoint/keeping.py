"""Order in a run's checkpoints: which of them stay, which have a link, and what killed saves left behind.

.saving-step_00001000-2-7    written by the ranks        .removing-…    on its way out        .replaced-…    until the new one is there
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from paceline.errors import CheckpointError, UsageError
from paceline.telemetry.checkpoints import LINKS, list_checkpoints, read_checkpoint, step_name
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
    for word, target in (("latest", step), ("best", best_step), ("final", final_step)):
        try:
            _link(layout, word, target)
        except OSError as error:
            unset[word] = error.strerror or str(error)
    return unset


def _link(layout: RunLayout, word: str, step: int | None) -> None:
    path = layout.checkpoints / word
    if step is not None and (layout.checkpoints / step_name(step)).is_dir():
        temporary = layout.checkpoints / f".{word}.{os.getpid()}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(step_name(step))
        try:
            os.replace(temporary, path)
        except OSError:
            temporary.unlink()
            raise
    elif path.is_symlink() and not path.exists():
        path.unlink()


def warn_unset(events: EventLog, layout: RunLayout, unset: Mapping[str, str]) -> None:
    """Says which links could not be set."""
    if unset:
        words = "; ".join(f"{word}: {reason}" for word, reason in unset.items())
        events.write(
            "warning", what=f"a link to a checkpoint could not be set ({words})", where=str(layout.checkpoints)
        )


def retire(layout: RunLayout, keep: int, best_step: int | None) -> list[int]:
    """Removes all but the newest `keep` checkpoints, the best, and those that a link names; their steps.

    A damaged one counts for nothing and stays.
    """
    spared = set()
    for word in LINKS:
        with contextlib.suppress(OSError):
            spared.add(os.path.basename(os.readlink(layout.checkpoints / word)))
    if best_step is not None:
        spared.add(step_name(best_step))
    whole = []
    for path in list_checkpoints(layout.checkpoints):
        with contextlib.suppress(CheckpointError, UsageError):
            whole.append((read_checkpoint(path).step, path))
    removed = []
    for step, path in whole[keep:]:
        if path.name not in spared:
            # Out of sight first: what is half removed must not look like a damaged checkpoint.
            hidden = path.with_name(f"{_REMOVING}{path.name}")
            shutil.rmtree(hidden, ignore_errors=True)
            os.rename(path, hidden)
            shutil.rmtree(hidden, ignore_errors=True)
            removed.append(step)
    return removed


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
