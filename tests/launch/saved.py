"""Checkpoints by hand: the files of one, with a manifest that fits them and tensors that nobody reads."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from paceline.files import write_json
from paceline.telemetry.checkpoints import STATE, FileEntry, Manifest, shard_name, step_name, write_manifest
from paceline.telemetry.layout import RunLayout

RUN_ID = "0123456789ab"


def save_checkpoint(root: Path, step: int, values: dict[str, Any] | None = None, content: bytes = b"weights") -> Path:
    """A whole checkpoint of that step below the run directory."""
    path = RunLayout(root).checkpoints / step_name(step)
    path.mkdir(parents=True)
    write_json(path / STATE, {"step": step})
    (path / shard_name(0)).write_bytes(content)
    files = {name: _entry(path / name) for name in (STATE, shard_name(0))}
    identity = {"fingerprint": "aa", "values": {"run.seed": 0} if values is None else values}
    write_manifest(path, Manifest(step, RUN_ID, 1, 2, "0", identity, files, {"model.w": shard_name(0)}))
    return path


def _entry(file: Path) -> FileEntry:
    data = file.read_bytes()
    return FileEntry(len(data), zlib.crc32(data))
