"""Whose weights a new run begins with: those of another run, of one of its checkpoints, or of an export, and their digest.

    weights = find_weights("runs/a")        # also runs/a/checkpoints/best, or the directory of an export
    weights.check()                         # every byte; CheckpointError says what is wrong
    weights.record()                        -> {"path": "…/runs/a/checkpoints/step_00001000", "digest": "9f2c…", "given": "…/runs/a"}

The digest joins the identity of the run: other first weights are another run. Nothing is unpickled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import CheckpointError, UsageError
from paceline.files import sha256_of
from paceline.telemetry.checkpoints import Checkpoint, check_files, find_checkpoint, shards_digest
from paceline.telemetry.exports import RECORD, WEIGHTS, read_export
from paceline.telemetry.run_file import load_run_file


@dataclass(frozen=True)
class Weights:
    """Where they lie, and what they are."""

    path: Path
    """of a checkpoint or an export, absolute and without links"""
    digest: str
    given: Path
    """as it was typed, but absolute"""
    checkpoint: Checkpoint | None = None

    def record(self) -> dict[str, Any]:
        """What run.json says about them."""
        return {"path": str(self.path), "digest": self.digest, "given": str(self.given)}

    def check(self) -> None:
        """Reads every byte once; CheckpointError if one is not what it should be."""
        if self.checkpoint is not None:
            check_files(self.checkpoint)
            return
        with readable(self.path):
            found = sha256_of(self.path / WEIGHTS)
        if found != self.digest:
            what = f"the export is damaged: {WEIGHTS} does not have its checksum"
            raise CheckpointError(what, str(self.path), "export the run again")


def find_weights(given: str, out: str | Path | None = None) -> Weights:
    """The weights in that directory, or those that the run in `out` began with when the same words were typed.

    The second because a run must go on where what it once began with has trained on, or has been tidied away.
    """
    path = Path(given).absolute()
    run = load_run_file(Path(out)) if out else None
    if run is not None and run.init_from is not None and run.init_from.get("given") == str(path):
        return Weights(Path(run.init_from["path"]), str(run.init_from["digest"]), path)
    with readable(path):
        if (path / RECORD).exists():
            return Weights(path.resolve(), read_export(path).sha256, path)
        checkpoint = find_checkpoint(path)
        return Weights(checkpoint.path.resolve(), shards_digest(checkpoint), path, checkpoint)


@contextlib.contextmanager
def readable(path: str | Path) -> Iterator[None]:
    """What cannot be read below `path` is for the operator to mend."""
    try:
        yield
    except OSError as error:
        what = f"cannot read there ({error.strerror or error})"
        raise UsageError(what, str(error.filename or path), "check the path and its permissions") from error
