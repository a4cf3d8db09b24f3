"""An export as files: a trained model by itself, with what it takes to build it again. Standard library only.

    export/   model.safetensors   config.yaml   export.json

    with building_export(Path("runs/a/export")) as directory: …     # takes its place when the block ends well
    export = read_export(Path("runs/a/export"))                     # its record; whoever reads the weights checks them

An export is whole or not there, and never mixed from two.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import CheckpointError, OccupiedError, UsageError
from paceline.files import read_json, write_json
from paceline.telemetry.run_file import known_fields

SCHEMA = 1
"""Version of an export's files; a newer one is refused."""
WEIGHTS, CONFIG, RECORD = "model.safetensors", "config.yaml", "export.json"


@dataclass(frozen=True)
class Export:
    """The content of export.json."""

    recipe: str
    step: int
    run: str
    """the id of the run"""
    checkpoint: str
    """the name of the checkpoint, such as step_00001000"""
    paceline: str
    torch: str
    sha256: str
    """of model.safetensors"""
    num_parameters: int
    identity: dict[str, Any]
    """{"fingerprint": …, "values": {dotted key: value}} of the run"""
    is_average: bool = False
    """the weights are the moving average that the run kept"""
    metrics: list[dict[str, Any]] = field(default_factory=list)
    """the rows of validation.csv that the run logged at that step"""
    v: int = SCHEMA


def write_export(directory: Path, export: Export) -> None:
    write_json(directory / RECORD, asdict(export))


def read_export(path: Path) -> Export:
    """The record of the export in that directory; CheckpointError if it is none."""
    record = path / RECORD
    try:
        content = read_json(record)
        version = content["v"]
        if isinstance(version, int) and version > SCHEMA:
            what = f"this export was written by a newer Paceline (version {version}, this one reads up to {SCHEMA})"
            raise UsageError(what, str(path), "install the newer version")
        export = Export(**known_fields(Export, content))
        if type(export.step) is not int or not isinstance(export.identity["values"], dict):
            raise ValueError("no step or no identity")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"the export is damaged: {RECORD} is not the record of one ({error})"
        raise CheckpointError(what, str(path), "export the run again") from error
    return export


@contextlib.contextmanager
def building_export(target: Path) -> Iterator[Path]:
    """A hidden directory to write an export into; at the end of the block it becomes `target`, in place of an earlier export."""
    _check_target(target)
    hidden = target.with_name(f".{target.name}.{os.getpid()}")
    hidden.mkdir(parents=True)
    try:
        yield hidden
        _take_place(hidden, target)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _check_target(target: Path) -> None:
    """Refuses to replace anything but an export, or nothing."""
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise OccupiedError("a file stands where the export should go", str(target), "choose another --out DIR")
    names = {entry.name for entry in os.scandir(target)}
    others = sorted(names - {WEIGHTS, CONFIG, RECORD}) if RECORD in names else sorted(names)
    if others:
        shown = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
        what = f"the directory holds what is no export ({shown}), and would be replaced"
        raise OccupiedError(what, str(target), "choose another --out DIR, or move these away")


def _take_place(hidden: Path, target: Path) -> None:
    # A directory cannot be renamed onto one that has files in it: the earlier export steps aside, whole, until the new one is there.
    aside = hidden.with_name(f"{hidden.name}.earlier")
    has_earlier = target.exists()
    if has_earlier:
        os.rename(target, aside)
    try:
        os.rename(hidden, target)
    except OSError:
        if has_earlier:
            os.rename(aside, target)
        raise
    shutil.rmtree(aside, ignore_errors=True)
