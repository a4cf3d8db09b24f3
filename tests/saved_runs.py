"""Run directories with checkpoints, as a run leaves them, written without training."""

from __future__ import annotations

import time
import zlib
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

import paceline
from paceline.config.dump import dump_config
from paceline.files import write_json, write_text
from paceline.recipes.job import Job, load_job
from paceline.telemetry.checkpoints import STATE, FileEntry, Manifest, shard_name, step_name, write_manifest
from paceline.telemetry.events import EventLog
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.run_file import Attempt, RunFile
from paceline.telemetry.tables import VALIDATION_COLUMNS, Table
from paceline.workload import Setting
from tests.integration.conftest import tiny

RUN_ID = "0123456789ab"


def build_weights(job: Job, step: int) -> dict[str, torch.Tensor]:
    """Other weights for every step; far from those that training begins with, so that ranks differ."""
    model = job.recipe.build(job.config).build_model(Setting(torch.device("cpu"), "sdpa"))
    generator = torch.Generator().manual_seed(step)
    return {name: torch.randn(value.shape, generator=generator) for name, value in model.state_dict().items()}


def save_run(
    root: Path,
    *overrides: str,
    steps: tuple[int, ...] = (3, 6),
    best: int | None = None,
    recipe: str | None = None,
) -> RunLayout:
    """A run that saved at these steps, the last one as latest and final: of the tiny configuration, or of `recipe` with the overrides."""
    job = load_job(recipe or "sasrec", list(overrides) if recipe else tiny(*overrides), environ={})
    layout = RunLayout(root)
    layout.checkpoints.mkdir(parents=True)
    attempt = Attempt(1, 2, 1, time.time(), "", ["paceline", "train"], "finished", "length", max(steps, default=0), 0)
    run = RunFile(RUN_ID, job.recipe.name, "", paceline.__version__, time.time(), job.identity(), "finished", "length")
    run.attempts.append(attempt)
    run.save(layout)
    write_text(layout.config, dump_config(job.config))
    events = EventLog(layout.events, "rank 0", 1)
    events.choice("launch.omp_threads", "auto", "1", "2 cores for 2 workers")
    events.choice("device", "auto", "cpu", "no GPU here")
    events.choice("precision.mode", "auto", "fp32", "no GPU")
    events.close()
    for step in steps:
        save_checkpoint(layout, job, step)
    for word, step in (("latest", max(steps, default=None)), ("final", max(steps, default=None)), ("best", best)):
        if step is not None:
            (layout.checkpoints / word).symlink_to(step_name(step))
    return layout


def save_checkpoint(layout: RunLayout, job: Job, step: int) -> Path:
    directory = layout.checkpoints / step_name(step)
    directory.mkdir()
    tensors = {f"model.{name}": tensor for name, tensor in build_weights(job, step).items()}
    tensors["optimizer.step.final_norm.weight"] = torch.tensor(float(step))
    safetensors.torch.save_file(tensors, directory / shard_name(0))
    write_json(directory / STATE, {"step": step})
    files = {name: entry_of(directory / name) for name in (shard_name(0), STATE)}
    places = dict.fromkeys(tensors, shard_name(0))
    write_manifest(directory, Manifest(step, RUN_ID, 1, 2, paceline.__version__, job.identity(), files, places))
    return directory


def entry_of(file: Path) -> FileEntry:
    content = file.read_bytes()
    return FileEntry(len(content), zlib.crc32(content))


def log_validation(layout: RunLayout, *rows: dict[str, Any]) -> None:
    """Appends rows to validation.csv: log_validation(layout, {"step": 6, "split": "test", "num_samples": 7, "hr_10": 0.5})."""
    metrics = [name for name in rows[0] if name not in VALIDATION_COLUMNS]
    table = Table(layout.validation, (*VALIDATION_COLUMNS, *metrics, "time"))
    for row in rows:
        table.write({"attempt": 1, "epoch": 0, "samples": 0, "time": 0.0} | row)
    table.close()


def content_of(root: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below a directory: when it was last written, and what is in it."""
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
