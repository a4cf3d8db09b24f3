"""A trained model, ready to use: from a run directory, a checkpoint inside one, or an export.

    from paceline.trained import load_model

    trained = load_model("runs/demo")                                  # its best checkpoint
    trained = load_model("runs/demo", "step_00000256", device="cuda")
    trained = load_model("exported")
    trained.model(…), trained.workload, trained.step, trained.where

What is loaded is verified first. Nothing in it can run: safetensors, JSON, and a configuration that names a recipe installed here.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from paceline.config.changes import find_changes, list_changes, load_settings
from paceline.config.fingerprint import DATA_DIGEST
from paceline.config.nearest import nearest
from paceline.engine.attention import Attention, choose_attention, find_calls
from paceline.engine.checkpoint.reading import read_exported, read_model, read_state
from paceline.engine.checkpoint.tensors import load_weights
from paceline.engine.precision import choose_precision
from paceline.engine.ranks import Ranks
from paceline.errors import CheckpointError, DataError, UsageError
from paceline.recipes.job import Job, load_job
from paceline.recipes.registry import recipe_names
from paceline.telemetry.checkpoints import (
    LINKS,
    MANIFEST,
    Checkpoint,
    check_files,
    find_checkpoint,
    list_checkpoints,
    read_checkpoint,
)
from paceline.telemetry.events import QuietLog
from paceline.telemetry.exports import CONFIG, RECORD, read_export
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.run_file import SDK_RECIPE, load_run_file
from paceline.workload import Setting, Settles, Workload


@dataclass(frozen=True)
class Trained:
    """A model with the weights of one step of one run, and the job that it was trained for."""

    job: Job
    workload: Workload
    model: torch.nn.Module
    """on the device that was asked for, in evaluation mode"""
    step: int
    where: str
    """the checkpoint or export that it was loaded from"""
    note: str
    """what was taken in place of what was asked for, and why; empty where there is nothing to say"""
    is_average: bool
    """the weights are the moving average that the run kept (train.optimizer.ema), not those of its last update"""
    checkpoint: Checkpoint | None
    """None: it was loaded from an export"""
    root: Path
    """the run directory or export whose config.yaml describes it"""
    attention: Attention
    """what the run's policy says here; the model is built for it. `attention.install()` also restricts SDPA, in the whole process"""


def load_model(path: str | Path, checkpoint: str | Path = "best", device: str | torch.device = "cpu") -> Trained:
    """The model of a run directory, a checkpoint in one, or an export.

    `checkpoint` chooses among those of a run: best, latest, final, a name such as step_00000256, or a path. Where there is no best
    one yet, the newest whole one is taken, and `note` says so. The run's data has to be where its configuration says.
    """
    target = _usable_device(device)
    if (Path(path) / RECORD).exists():
        return _load_export(Path(path), target)
    root, word = _locate(Path(path), str(checkpoint))
    job = _load_job(RunLayout(root).config)
    found, weights, is_average, note = _read_weights(root, word)
    where = str(found.path)
    _check_identity(job, found.manifest.identity, where)
    workload, model, attention = _build(job, weights, target, where, found)
    return Trained(job, workload, model, found.step, where, note, is_average, found, root, attention)


def _load_export(path: Path, device: torch.device) -> Trained:
    export = read_export(path)
    job = _load_job(path / CONFIG)
    _check_identity(job, export.identity, str(path))
    workload, model, attention = _build(job, read_exported(path), device, str(path))
    return Trained(job, workload, model, export.step, str(path), "", export.is_average, None, path, attention)


def _load_job(config: Path) -> Job:
    """The job of a configuration that was trained once, perhaps where other packages are installed."""
    recipe, names = load_settings(config).get("recipe"), recipe_names()
    if isinstance(recipe, str) and recipe not in (*names, SDK_RECIPE):
        what = f"the recipe {recipe!r} that this was trained with is not installed here (there are: {', '.join(names)})"
        raise UsageError(what, str(config), f"install the package that has the recipe {recipe!r}")
    return load_job(str(config))


def _build(
    job: Job,
    weights: Mapping[str, torch.Tensor],
    device: torch.device,
    where: str,
    checkpoint: Checkpoint | None = None,
) -> tuple[Workload, torch.nn.Module, Attention]:
    workload = job.recipe.build(job.config)
    ranks = Ranks(0, 1, device, "none", "one process")
    precision, _ = choose_precision(job.config.precision.mode, ranks.lowest_capability())
    attention = _choose_attention(job, workload, ranks, precision)
    setting = Setting(device, attention.kernel, precision=precision)
    if isinstance(workload, Settles) and checkpoint is not None:
        setting = replace(setting, settled=workload.keep(setting, _read_settled(checkpoint)))
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they were
        model = workload.build_model(setting)
    load_weights(model, weights, where)
    return workload, model.to(device).eval(), attention


def _read_settled(checkpoint: Checkpoint) -> Mapping[str, Any]:
    try:
        return read_state(checkpoint).settled
    except CheckpointError:
        # A run that is training may have removed it by now: its weights are here, and only last digits depend on the rest.
        return {}


def _choose_attention(job: Job, workload: Workload, ranks: Ranks, precision: str) -> Attention:
    """As the run would choose on this device; what cannot be served here has a fallback, whatever the run asked for."""
    section = job.config.attention.model_copy(update={"fallback": "warn"})
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        # What is not deterministic was refused in the run, and is here.
        torch.use_deterministic_algorithms(was_deterministic or job.config.run.deterministic)
        return choose_attention(
            section, find_calls(workload, job.config, ranks.device, 1), precision, ranks, QuietLog()
        )
    finally:
        torch.use_deterministic_algorithms(was_deterministic)


def _locate(path: Path, word: str) -> tuple[Path, str]:
    """(run directory, which of its checkpoints) for a run directory or a checkpoint inside one."""
    if load_run_file(path) is not None:
        return path, word
    real = path.resolve()
    around = real.parent.parent
    if real.is_dir() and real.parent.name == RunLayout(around).checkpoints.name and load_run_file(around) is not None:
        return around, str(real)
    if (path / MANIFEST).exists():
        what = "a checkpoint away from its run does not say how its model is built (the run's config.yaml does)"
        do = "give the run directory, or a directory that `paceline export RUN` wrote"
        raise UsageError(what, str(path), do)
    what = "neither a run directory nor a checkpoint nor an export" if path.exists() else "there is no such directory"
    raise UsageError(what, str(path), "name a directory that `paceline train` or `paceline export` printed")


def _read_weights(root: Path, word: str, chances: int = 5) -> tuple[Checkpoint, dict[str, torch.Tensor], bool, str]:
    """(checkpoint, its weights, whether they are an average, note). A run that is training may remove what is being read: then it is chosen anew."""
    directory = RunLayout(root).checkpoints
    paths = list_checkpoints(directory)
    try:
        checkpoint, note = _choose(root, word)
        if word != "latest":
            check_files(checkpoint)
        return checkpoint, *read_model(checkpoint), note
    except CheckpointError:
        if chances == 1 or list_checkpoints(directory) == paths:
            raise
    return _read_weights(root, word, chances - 1)


def _choose(root: Path, word: str) -> tuple[Checkpoint, str]:
    """The checkpoint that a word or path means, and what there is to say about it; `latest` is whole."""
    layout = RunLayout(root)
    paths = list_checkpoints(layout.checkpoints)
    if word == "best" and paths and not (layout.checkpoints / word).exists():
        checkpoint, note = _choose(root, "latest")
        return checkpoint, "; ".join(filter(None, ("there is no best checkpoint here: the newest is taken", note)))
    names = [*LINKS, *(path.name for path in paths)]
    if word not in names:
        if word and Path(word).is_dir():
            return read_checkpoint(Path(word).resolve()), ""
        close = nearest(word, names)
        do = f"use {close}" if close else f"give one of {', '.join(names)}, or the path of a checkpoint"
        raise UsageError(f"there is no checkpoint {word!r}", str(layout.checkpoints), do)
    checkpoint = find_checkpoint(root, word)
    newer = [path.name for path in itertools.takewhile(lambda path: path != checkpoint.path, paths)]
    is_older = word == "latest" and newer
    return checkpoint, f"passed over, because they are damaged: {', '.join(newer)}" if is_older else ""


def _check_identity(job: Job, identity: Mapping[str, Any], where: str) -> None:
    """Refuses weights that were trained on other data, or with another configuration, than the job has."""
    trained, here = identity.get("values", {}), job.identity()["values"]
    both = trained.keys() & here.keys()  # a version of Paceline may know keys that another does not
    changes = find_changes({key: trained[key] for key in both}, {key: here[key] for key in both})
    if not changes:
        return
    if [change.key for change in changes] == [DATA_DIGEST]:
        what = "the data is not what this model was trained on"
        raise DataError(f"{what} ({changes[0]})", where, "give the same data at the place that config.yaml names")
    what = list_changes("the weights were trained with another configuration; different are:", changes)
    raise CheckpointError(what, where, "name the run that they belong to")


def _usable_device(device: str | torch.device) -> torch.device:
    try:
        target = torch.device(device)
    except RuntimeError as error:
        what = f"there is no device {device!r}"
        raise UsageError(what, str(error).splitlines()[0], "use 'cpu', 'cuda', or 'cuda:1'") from error
    if target.type == "cuda" and (target.index or 0) >= torch.cuda.device_count():
        what = f"there is no {target} here ({torch.cuda.device_count()} GPUs)"
        raise UsageError(what, f"device {device}", "compute on the CPU: cpu")
    return target
