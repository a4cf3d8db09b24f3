"""Where a run begins: at step 0, with another run's weights, or from another run's checkpoint (a fork); or that it goes on.

    wish = Wish(resume="runs/a/checkpoints/best")                       # what the operator typed
    origin = plan_origin(wish, Path("runs/b"), True, description)       # CheckpointError where that cannot be
    origin.parent   -> {"run": "e017e1270028", "root": "…/runs/a", "checkpoint": "…", "step": 400, "changed": ["…lr: 0.1 → 0.01"], …}

Everything is decided, and a checkpoint is read to its last byte, before anything is created. Workers are told nothing: they read in
run.json what is written here, and take the newest whole checkpoint of the run itself before anything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.config.changes import changed_settings, find_changes, list_changes, load_settings
from paceline.config.fingerprint import may_fork_change
from paceline.errors import CheckpointError, UsageError
from paceline.launch.description import RunDescription
from paceline.launch.weights import Weights, readable
from paceline.telemetry.checkpoints import Checkpoint, check_files, find_checkpoint, list_checkpoints, newest_whole
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.run_file import RunFile, load_run_file

AUTO = "auto"
NEVER = "never"


@dataclass(frozen=True)
class Wish:
    """What the operator typed about where to begin."""

    resume: str = AUTO
    """auto, never, or a path"""
    init_from: str | None = None

    def __post_init__(self) -> None:
        for flag, word in (("--resume", self.resume), ("--init-from", self.init_from)):
            if word == "":
                raise UsageError(f"{flag} is empty", "command line", "give a path, or leave it out")
        if self.resume.lower() in (AUTO, NEVER) and self.resume != self.resume.lower():
            raise UsageError(f"--resume {self.resume} is no path", "command line", f"write {self.resume.lower()}")
        if self.init_from is not None and self.resume not in (AUTO, NEVER):
            raise UsageError(
                "--resume PATH goes on from a checkpoint, --init-from PATH takes weights to step 0: not both",
                f"--resume {self.resume} --init-from {self.init_from}",
                "leave one of them out",
            )

    def arguments(self) -> list[str]:
        """The same wish on a command line that may be typed elsewhere."""
        words = [] if self.resume == AUTO else ["--resume", _absolute(self.resume)]
        return words if self.init_from is None else [*words, "--init-from", _absolute(self.init_from)]


@dataclass(frozen=True)
class Origin:
    """Where a run begins if it is a new one; a run that is there goes on unless `must_be_new`."""

    must_be_new: bool = False
    parent: dict[str, Any] | None = None
    """of a fork, as run.json will hold it; then the run must be new, too"""
    init_from: dict[str, Any] | None = None

    def __str__(self) -> str:
        if self.parent is not None:
            return f"from step {self.parent['step']:,} of {self.parent['checkpoint']}"
        begins = "at step 0" if self.init_from is None else f"with the weights of {self.init_from['path']}"
        return begins if self.must_be_new else f"{begins}, or goes on from its newest whole checkpoint"


def plan_origin(
    wish: Wish, root: Path, is_chosen: bool, description: RunDescription, weights: Weights | None = None
) -> Origin:
    """Where the run in `root` begins; `is_chosen` if the operator named that directory. Changes nothing."""
    if wish.resume not in (AUTO, NEVER):
        with readable(wish.resume):
            return _plan_resumed(Path(wish.resume), root, is_chosen, description)
    if weights is not None and load_run_file(root) is None:
        weights.check()
    return Origin(wish.resume == NEVER, init_from=weights.record() if weights is not None else None)


def _plan_resumed(path: Path, root: Path, is_chosen: bool, description: RunDescription) -> Origin:
    run = load_run_file(root)
    if run is not None and _is_of(path, root):
        _check_newest(path, root)
        return Origin()
    if run is not None and _is_forked_from(run, path):
        return Origin()  # the same command again; what it began with need not be there any more
    checkpoint = find_checkpoint(path)
    _check_fork(checkpoint, path, is_chosen, description)
    check_files(checkpoint)
    return Origin(parent=_describe_parent(checkpoint, path, description))


def _is_of(path: Path, root: Path) -> bool:
    """Whether `path` is the run directory `root` or one of its checkpoints."""
    resolved, own = path.resolve(), root.resolve()
    return resolved == own or (resolved.parent.name == "checkpoints" and resolved.parent.parent == own)


def _is_forked_from(run: RunFile, path: Path) -> bool:
    parent = run.parent or {}
    return str(path.absolute()) == parent.get("given") or str(path.resolve()) == parent.get("checkpoint")


def _check_newest(path: Path, root: Path) -> None:
    """A run goes on from its newest checkpoint and from no other: what came after that would be overwritten."""
    if path.resolve() == root.resolve():
        return
    checkpoint = find_checkpoint(path)
    newest, _ = newest_whole(list_checkpoints(RunLayout(root).checkpoints))
    if newest is not None and newest.path.resolve() == checkpoint.path.resolve():
        return
    check_files(checkpoint)
    raise CheckpointError(
        f"this run has gone on to step {newest.step if newest is not None else 0:,} since then",
        str(path),
        f"to go back, fork: --resume {path} --out NEW",
    )


def _check_fork(checkpoint: Checkpoint, path: Path, is_chosen: bool, description: RunDescription) -> None:
    changes = find_changes(checkpoint.manifest.identity["values"], description.identity.get("values", {}))
    obstacles = [change for change in changes if not may_fork_change(change.key)]
    weights_only = f"--init-from {path} takes only the weights"
    if obstacles:
        raise CheckpointError(
            list_changes("this is a checkpoint of another configuration; a fork cannot change:", obstacles),
            str(path),
            f"use the checkpoint's values; {weights_only}",
        )
    if is_chosen:
        return
    what, root = "this is a checkpoint of another run", _root_of(checkpoint)
    do = f"choose --out NEW to fork; {weights_only}"
    if changes:
        what = list_changes("this is a checkpoint of another configuration; different are:", changes)
    elif RunLayout(root).run.exists():
        do = f"--out {root} goes on with that run; {do}"
    raise CheckpointError(what, str(path), do)


def _describe_parent(checkpoint: Checkpoint, path: Path, description: RunDescription) -> dict[str, Any]:
    root = _root_of(checkpoint)
    settings = load_settings(RunLayout(root).config)
    changes = changed_settings(settings, description.config_text, description.numerics)
    if not settings:  # a checkpoint that was copied away from its run
        changes = find_changes(checkpoint.manifest.identity["values"], description.identity.get("values", {}))
    return {
        "run": checkpoint.manifest.run,
        "root": str(root),
        "checkpoint": str(checkpoint.path.resolve()),
        "step": checkpoint.step,
        "changed": [str(change) for change in changes],
        "given": str(path.absolute()),
    }


def _root_of(checkpoint: Checkpoint) -> Path:
    """The run directory it lies in; its own where it was copied away."""
    path = checkpoint.path.resolve()
    return path.parent.parent if path.parent.name == "checkpoints" else path


def _absolute(word: str) -> str:
    return word if word in (AUTO, NEVER) else str(Path(word).absolute())
