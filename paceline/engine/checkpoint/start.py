"""Where a run begins: at its newest whole checkpoint, where it was forked, with somebody's weights, or at step 0.

Decided by rank 0 from the run directory alone, so that every rank, and every later start, comes to the same.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paceline.config.changes import find_changes, list_changes
from paceline.engine.asking import ask_first
from paceline.engine.average import Average
from paceline.engine.checkpoint.keeping import refresh_links, remove_leftovers, warn_unset
from paceline.engine.checkpoint.reading import (
    check_content,
    has_average,
    iterate_tensors,
    read_state,
    read_tensors,
    read_weights,
)
from paceline.engine.checkpoint.tensors import EMA, MODEL, OPTIMIZER, PRECISION, load_moments, load_weights
from paceline.engine.context import Context
from paceline.engine.precision import Precision
from paceline.engine.state import TrainState
from paceline.engine.strategies.base import Strategy
from paceline.engine.tables import Tables
from paceline.errors import CheckpointError
from paceline.files import read_records, storage_errors
from paceline.telemetry.checkpoints import Checkpoint, list_checkpoints, newest_whole, read_checkpoint
from paceline.telemetry.events import EventLog
from paceline.telemetry.software import list_differences


@dataclass(frozen=True)
class Start:
    """What a run begins with."""

    state: TrainState
    checkpoint: Checkpoint | None = None
    """weights, moments and scales; None: a fresh model"""
    weights: dict[str, Any] | None = None
    """for a fresh run: whose weights it takes over, as run.json says it"""
    is_fork: bool = False
    """the checkpoint is another run's: its schedule ends here"""

    def load_model(self, model: torch.nn.Module) -> None:
        if self.checkpoint is not None:
            load_weights(model, read_tensors(self.checkpoint, MODEL), str(self.checkpoint.path))
        elif self.weights is not None:
            path = Path(self.weights["path"])
            do = "use the configuration they were trained with, and another directory (--out DIR)"
            load_weights(model, read_weights(path, self.weights["digest"]), str(path), do)

    def load_rest(
        self,
        strategy: Strategy,
        optimizer: torch.optim.Optimizer,
        precision: Precision,
        tables: Tables | None = None,
    ) -> None:
        if self.checkpoint is not None:
            moments = iterate_tensors(self.checkpoint, OPTIMIZER)
            load_moments(strategy, optimizer, moments, str(self.checkpoint.path), tables)
            precision.load(read_tensors(self.checkpoint, PRECISION))

    def load_average(self, average: Average | None, events: EventLog) -> None:
        """The average of the weights, where there is one and one is wanted; what is missing or left behind is said."""
        if self.checkpoint is None:
            return
        saved = read_tensors(self.checkpoint, EMA)
        if average is not None and saved:
            average.load(saved, str(self.checkpoint.path))
        elif average is not None:
            what = f"the average of the weights begins at step {self.checkpoint.step:,}, with the weights of that step"
            events.write("note", what=what, why=f"{self.checkpoint.path.name} has none")
        elif saved:
            what = f"the average of the weights in {self.checkpoint.path.name} is left behind"
            events.write(
                "note", what=what, why="train.optimizer.ema=null: training goes on from the weights themselves"
            )


def choose_start(context: Context) -> Start:
    """The same on every rank; what is wrong is raised on every rank."""
    chosen = ask_first(context.ranks, lambda: _choose(context))
    if "weights" in chosen:
        return Start(TrainState(), weights=chosen["weights"])
    if "checkpoint" not in chosen:
        return Start(TrainState())
    checkpoint = read_checkpoint(Path(chosen["checkpoint"]))
    return Start(read_state(checkpoint), checkpoint, is_fork=chosen["is_fork"])


def _choose(context: Context) -> dict[str, Any]:
    run = context.run
    checkpoint, passed_over = _find_own(context)
    is_fork = checkpoint is None and run.parent is not None
    if checkpoint is None and run.parent is not None:
        checkpoint = read_checkpoint(Path(run.parent["checkpoint"]))
        check_content(checkpoint)
    if checkpoint is not None:
        _record(context, checkpoint, passed_over)
        return {"checkpoint": str(checkpoint.path), "is_fork": is_fork}
    if run.init_from is not None:
        path = run.init_from["path"]
        what = "weights only, their moving average" if has_average(Path(path)) else "weights only"
        context.events.write("resume", step=0, checkpoint=path, what=what, passed_over=[])
        return {"weights": run.init_from}
    return {}


def _find_own(context: Context) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint of the run itself, and what is wrong with newer ones; the directory is in order afterwards."""
    layout, is_enabled = context.layout, context.config.checkpoint.enabled
    if is_enabled:
        with storage_errors(layout.checkpoints):
            layout.checkpoints.mkdir(exist_ok=True)
            remove_leftovers(layout)
    paths = list_checkpoints(layout.checkpoints)
    checkpoint, passed_over = newest_whole(paths, check_content)
    if checkpoint is None and passed_over:
        what = "none of this run's checkpoints is whole: " + "; ".join(passed_over)
        raise CheckpointError(what, str(layout.checkpoints), "start over elsewhere with --out DIR")
    if checkpoint is None:
        _check_never_saved(context)
        return None, []
    _check_identity(context, checkpoint)
    if is_enabled:
        for path in paths[: len(passed_over)]:
            _set_aside(path)
        unset = refresh_links(layout, checkpoint.step, read_state(checkpoint).best_step)
        warn_unset(context.events, layout, unset)
    return checkpoint, passed_over


def _check_never_saved(context: Context) -> None:
    """Where there is no checkpoint: a run that has saved some does not begin anew, as if it had not (a disk that is not mounted)."""
    events = read_records(context.layout.events)
    saved = max((event["step"] for event in events if event.get("kind") == "checkpoint"), default=None)
    if saved is not None:
        raise CheckpointError(
            f"this run has saved checkpoints, the newest at step {saved:,}, and none is there",
            str(context.layout.checkpoints),
            "put them back, or start over elsewhere with --out DIR",
        )
    if context.attempt > 1:
        what = f"attempt {context.attempt} begins at the beginning: those before it left no checkpoint"
        context.events.write("note", what=what)


def _check_identity(context: Context, checkpoint: Checkpoint) -> None:
    old, new = checkpoint.manifest.identity, context.run.identity
    if old.get("fingerprint") == new.get("fingerprint"):
        if checkpoint.manifest.run != context.run.id:
            what = (
                f"{checkpoint.path.name} was written by another run ({checkpoint.manifest.run}) of this configuration"
            )
            context.events.write("warning", what=what, where=str(checkpoint.path.parent))
        return
    changes = find_changes(old["values"], new.get("values", {}))
    raise CheckpointError(
        list_changes("the newest checkpoint here is of another configuration; different are:", changes),
        str(checkpoint.path),
        "move it away, or begin from its weights with --init-from",
    )


def _set_aside(path: Path) -> None:
    """A damaged checkpoint keeps its bytes and loses its name, which the step will need again."""
    target, count = path.with_name(f"{path.name}.damaged"), 1
    while target.exists():
        count += 1
        target = path.with_name(f"{path.name}.damaged-{count}")
    with storage_errors(path):
        os.rename(path, target)


def _record(context: Context, checkpoint: Checkpoint, passed_over: list[str]) -> None:
    fields: dict[str, Any] = {
        "step": checkpoint.step,
        "checkpoint": str(checkpoint.path),
        "passed_over": passed_over,
        "world_size": context.ranks.world_size,
        "saved_world_size": checkpoint.manifest.world_size,
    }
    if context.ranks.world_size != checkpoint.manifest.world_size:
        fields["why"] = "another number of ranks: the same samples, not the same bits"
    context.events.write("resume", **fields)
    _compare_software(context, checkpoint)


def _compare_software(context: Context, checkpoint: Checkpoint) -> None:
    """Says what trains now and did not write the checkpoint. The run goes on: nobody can tell whether a sum is another one by it."""
    saved, now = checkpoint.manifest.software, context.software
    if not saved:  # an older checkpoint knows its Paceline alone
        saved = {"paceline": checkpoint.manifest.paceline}
        now = {name: value for name, value in now.items() if name in saved}
    changed = list_differences(saved, now) if now else []
    if changed:
        context.events.write(
            "note",
            what=f"software changed since step {checkpoint.step:,} was saved",
            why="sums may be others: equality bit for bit with what came before is no longer promised",
            changed=changed,
        )
