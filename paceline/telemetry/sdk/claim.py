"""A run directory, taken by rank 0 of a foreign loop for one attempt, and given back with how it ended; the other ranks look it up.

    claim = claim_run(layout, Description(…), rank)      # or OccupiedError: another run's, or still running
    claim.finish("finished", "length", step=400, exit_code=0)
    find_attempt(layout, rank)                           -> (the run's id, 3), or None: rank 0 has not begun it yet

Nothing of an earlier attempt is deleted.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paceline
from paceline.errors import OccupiedError, UsageError
from paceline.files import Lock, write_json, write_text
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.ownership import check_foreign, close_earlier, living_owner, save_fenced
from paceline.telemetry.pulse import create_pulse_directory, remove_pulse_directory
from paceline.telemetry.run_file import SDK_RECIPE, Attempt, RunFile, load_run_file
from paceline.telemetry.sdk.agreement import Agreement
from paceline.telemetry.sdk.ranks import Rank
from paceline.telemetry.sdk.settings import differing, flatten, identify, identity_value, read_lines, to_yaml

_ANOTHER = "give start_run another directory"


@dataclass(frozen=True)
class Description:
    """What the directory will say about the run."""

    name: str
    settings: Mapping[str, Any]
    may_change: Collection[str]
    origin: str
    """where start_run was called"""


@dataclass
class SdkClaim:
    """A run directory held for one attempt, by this process."""

    layout: RunLayout
    run: RunFile
    attempt: int
    pulses: Path
    agreement: Agreement | None
    notes: list[str]
    """what a person should know about how the claim came about"""
    _lock: Lock = field(repr=False)
    _is_written: bool = False
    _guard: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def finish(self, state: str, reason: str, step: int, exit_code: int) -> None:
        """Writes how the attempt ended; the first word stands."""
        with self._guard:
            if self._is_written:
                return
            self._is_written = True
            attempt = self.run.attempts[-1]
            attempt.state, attempt.reason, attempt.step, attempt.exit_code = state, reason, step, exit_code
            attempt.ended = time.time()
            self.run.state, self.run.reason = state, reason
            self.run.save(self.layout)

    def release(self) -> None:
        remove_pulse_directory(self.pulses)
        self._lock.release()

    def forget(self) -> None:
        """In a forked process: its copy of the lock goes, the owner keeps its own."""
        self._lock.release()


def claim_run(layout: RunLayout, description: Description, rank: Rank) -> SdkClaim:
    """Takes the directory for a new attempt, or says why not."""
    layout.root.mkdir(parents=True, exist_ok=True)
    check_foreign(layout, f"{_ANOTHER}, empty or new")
    lock = Lock(layout.owner_lock)
    if not lock.acquire_within(0.3):  # `paceline stop` looks at the lock by touching it
        lock.release()
        raise living_owner(layout, f"paceline stop {layout.root}, or {_ANOTHER}")
    try:
        run = load_run_file(layout.root)
        notes: list[str] = []
        if run is None:
            identity = identify(description.settings, description.may_change)
            run = RunFile(
                secrets.token_hex(6), SDK_RECIPE, description.name, paceline.__version__, time.time(), identity
            )
        else:
            _check_same_run(layout, run, description)
            notes = close_earlier(run)
        return _begin(layout, run, description, rank, notes, lock)
    except BaseException:
        lock.release()
        raise


def _check_same_run(layout: RunLayout, run: RunFile, description: Description) -> None:
    if run.recipe != SDK_RECIPE:
        what = f"the directory belongs to a run of the recipe {run.recipe}, which Paceline itself trains"
        raise OccupiedError(what, str(layout.root), _ANOTHER)
    may_change = {*description.may_change, *run.identity.get("may_change", ())}
    new = identify(description.settings, may_change)["values"]
    old = {key: identity_value(value) for key, value in run.identity.get("values", {}).items()}
    changes = differing(old, new, may_change)
    if changes:
        lines = [f"{key}: {old!r} → {new!r}" for key, old, new in changes]
        what = "\n    ".join(["the directory belongs to another run; different are:", *lines])
        do = f"{_ANOTHER}, or name what may differ from one attempt to the next with may_change=[{changes[0][0]!r}]"
        raise OccupiedError(what, str(layout.root), do)


def _begin(
    layout: RunLayout, run: RunFile, description: Description, rank: Rank, notes: list[str], lock: Lock
) -> SdkClaim:
    number = run.attempts[-1].attempt + 1 if run.attempts else 1
    pulses = create_pulse_directory(run.id, number)
    text = to_yaml(description.settings)
    attempt = Attempt(number, rank.world_size, os.getpid(), time.time(), str(pulses), list(sys.orig_argv))
    attempt.launch, attempt.changed = rank.launch, _changed(layout, text)
    run.attempts.append(attempt)
    run.state, run.reason = "running", ""
    try:
        agreement = Agreement(pulses, create=True) if rank.world_size > 1 and rank.is_one_host else None
        # run.json first: a directory with anything else in it and no run.json is nobody's.
        save_fenced(layout, run)
        write_text(layout.config, text)
        write_json(layout.origins, dict.fromkeys(flatten(description.settings), description.origin))
        layout.stop_request.unlink(missing_ok=True)
    except BaseException:
        remove_pulse_directory(pulses)
        raise
    return SdkClaim(layout, run, number, pulses, agreement, notes, lock)


def _changed(layout: RunLayout, text: str) -> list[str]:
    """`key: old → new` of what differs from the attempt before."""
    try:
        old = read_lines(layout.config.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return []
    return [f"{key}: {before} → {after}" for key, before, after in differing(old, read_lines(text))]


def find_attempt(layout: RunLayout, rank: Rank) -> tuple[str, int] | None:
    """(id of the run, number of the attempt) that rank 0 of the same launch has begun and still owns; None if there is none yet."""
    try:
        run = load_run_file(layout.root)
    except (OSError, UsageError):
        return None
    if run is None or run.recipe != SDK_RECIPE or not run.attempts:
        return None
    attempt = run.attempts[-1]
    if attempt.state != "running" or attempt.launch != rank.launch or attempt.world_size != rank.world_size:
        return None
    lock = Lock(layout.owner_lock)
    try:
        # An attempt of an earlier launch with the same address has no owner any more.
        return None if lock.acquire(shared=True) else (run.id, attempt.attempt)
    finally:
        lock.release()
