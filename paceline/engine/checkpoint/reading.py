"""Reads tensors and state out of a checkpoint or an export. Safetensors and JSON only: nothing that is read can run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path

import safetensors
import torch

from paceline.engine.checkpoint.tensors import EMA, MODEL
from paceline.engine.state import TrainState
from paceline.errors import CheckpointError
from paceline.files import read_json, sha256_of
from paceline.telemetry.checkpoints import STATE, Checkpoint, check_files, damaged, read_checkpoint, shards_digest
from paceline.telemetry.exports import RECORD, WEIGHTS, read_export


def check_content(checkpoint: Checkpoint) -> None:
    """Every byte, and whether the files hold what a checkpoint holds: checksums alone say nothing about who made them."""
    check_files(checkpoint)
    read_state(checkpoint)
    for file in set(checkpoint.manifest.tensors.values()):
        expected = {name for name, place in checkpoint.manifest.tensors.items() if place == file}
        try:
            with safetensors.safe_open(checkpoint.path / file, framework="pt") as content:
                missing = expected - set(content.keys())
        except (safetensors.SafetensorError, OSError, ValueError, RuntimeError) as error:
            raise damaged(checkpoint.path, f"{file} cannot be read ({error})") from error
        if missing:
            raise damaged(checkpoint.path, f"{file} does not hold {min(missing)}")


def read_model(checkpoint: Checkpoint) -> tuple[dict[str, torch.Tensor], bool]:
    """The weights of the model to use, and whether they are the moving average: it is taken wherever a run kept one."""
    average = read_tensors(checkpoint, EMA)
    return read_tensors(checkpoint, MODEL) | average, bool(average)


def read_tensors(checkpoint: Checkpoint, prefix: str) -> dict[str, torch.Tensor]:
    """The tensors whose names begin with `prefix`, by the rest of their names, in memory of their own."""
    return dict(iterate_tensors(checkpoint, prefix))


def iterate_tensors(checkpoint: Checkpoint, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The same one after another, for who needs a part of each only."""
    by_file: dict[str, list[str]] = {}
    for name, file in checkpoint.manifest.tensors.items():
        if name.startswith(prefix):
            by_file.setdefault(file, []).append(name)
    for file, names in by_file.items():
        try:
            for name, tensor in _read_file(checkpoint.path / file, names):
                yield name.removeprefix(prefix), tensor
        except (safetensors.SafetensorError, OSError, ValueError, RuntimeError) as error:
            raise damaged(checkpoint.path, f"{file} cannot be read ({error})") from error


def read_weights(path: Path, digest: str) -> dict[str, torch.Tensor]:
    """The weights of the checkpoint or export at a path, if they are still what the digest says; every byte is checked."""
    is_export = (path / RECORD).exists()
    checkpoint = None if is_export else read_checkpoint(path)
    found = read_export(path).sha256 if checkpoint is None else shards_digest(checkpoint)
    if found != digest:
        what = "these are other weights than this run began with"
        raise CheckpointError(what, str(path), "put the old ones back, or begin another run with --out DIR")
    if checkpoint is None:
        return read_exported(path)
    check_files(checkpoint)
    return read_model(checkpoint)[0]


def has_average(path: Path) -> bool:
    """Whether `read_weights` finds a moving average at a path."""
    if (path / RECORD).exists():
        return read_export(path).is_average
    return any(name.startswith(EMA) for name in read_checkpoint(path).manifest.tensors)


def read_exported(path: Path) -> dict[str, torch.Tensor]:
    """The weights of an export, after a look at their checksum."""
    file = path / WEIGHTS
    try:
        if sha256_of(file) != read_export(path).sha256:
            raise ValueError("it does not have its checksum")
        with safetensors.safe_open(file, framework="pt") as weights:
            names = list(weights.keys())
        return dict(_read_file(file, names))
    except (safetensors.SafetensorError, OSError, ValueError, RuntimeError) as error:
        what = f"the export is damaged: {WEIGHTS} ({error})"
        raise CheckpointError(what, str(path), "export it again with `paceline export RUN`") from error


def read_state(checkpoint: Checkpoint) -> TrainState:
    """Where the run was."""
    path = checkpoint.path / STATE
    try:
        # What was saved before there was such a thing had settled nothing.
        content = {"settled": {}} | read_json(path)
        state = TrainState(**{field.name: content[field.name] for field in dataclasses.fields(TrainState)})
        state.check()
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise damaged(checkpoint.path, f"{STATE} does not hold a state ({type(error).__name__}: {error})") from error
    if state.step != checkpoint.step:
        raise damaged(checkpoint.path, f"{STATE} is of step {state.step}, the manifest of step {checkpoint.step}")
    return state


def _read_file(path: Path, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
    with safetensors.safe_open(path, framework="pt") as file:
        for name in names:
            # What comes back lies in a mapping of the file, which a later change of the file would reach.
            yield name, file.get_tensor(name).clone()
