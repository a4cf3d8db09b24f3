"""`paceline export`: a trained model as safetensors, with its configuration and what the run logged about it.

The directory is written beside its place and renamed: it is whole or not there. Nothing else of the run is touched.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.arguments import CheckpointWord, Debug, RunDirectory
from paceline.cli.asking import ask_worker, waiting
from paceline.files import storage_errors
from paceline.launch.weights import readable
from paceline.telemetry.exports import building_export
from paceline.telemetry.reader import read_run


def command(
    run: RunDirectory,
    checkpoint: CheckpointWord = "best",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where to write; an earlier export there is replaced.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Write a trained model as safetensors, with its configuration.

    Example: paceline export runs/sasrec-1a2b3c4d --out exported
    """
    with readable(run):
        read_run(run)  # before torch is waited for
    target = Path(os.path.realpath(out or run / "export"))
    with storage_errors(target), building_export(target) as directory:
        arguments = ["paceline.worker.model", "export", str(run), "--checkpoint", checkpoint, "--to", str(directory)]
        with waiting("exporting"):
            answer = ask_worker(arguments)
    if answer["note"]:
        print(answer["note"])
    size = f"{answer['num_parameters']:,} parameters, {answer['bytes'] / 2**20:,.1f} MiB"
    print(f"exported step {answer['step']:,} ({Path(answer['checkpoint']).name}): {size}")
    print(f"export: {target}")
