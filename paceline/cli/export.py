"""`paceline export`: a trained model as safetensors, with its configuration and what the run logged about it.

The directory is written beside its place and renamed: it is whole or not there. Nothing else of the run is touched. With
`--compile-check` the export is then loaded, compiled, and compared with itself as written: exit code 6 where outputs differ.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli.arguments import CheckpointWord, Debug, Json, RunDirectory
from paceline.cli.asking import ask_worker, waiting
from paceline.errors import GateError
from paceline.files import finite, storage_errors
from paceline.launch.weights import readable
from paceline.telemetry.exports import building_export
from paceline.telemetry.reader import read_run


def command(
    run: RunDirectory,
    checkpoint: CheckpointWord = "best",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where to write; an earlier export there is replaced.")
    ] = None,
    compile_check: Annotated[
        bool,
        typer.Option(
            "--compile-check", help="Also compile it: are the outputs those of the model as written, and how fast?"
        ),
    ] = False,
    as_json: Json = False,
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
    check = _check_compiled(target) if compile_check else None
    if as_json:
        print(json.dumps(finite(answer | {"export": str(target), "compile_check": check}), indent=2))
    else:
        _print(answer, check, target)
    if check is not None and not check["equal"]:
        what = f"compiled outputs differ from those of the model as written ({check['max_difference']:.2g})"
        raise GateError(what, check["tolerance"], "use the export as written; it is whole")


def _check_compiled(target: Path) -> dict[str, Any]:
    with waiting("compiling"):
        return ask_worker(["paceline.worker.model", "compiled", str(target)])


def _print(answer: dict[str, Any], check: dict[str, Any] | None, target: Path) -> None:
    if answer["note"]:
        print(answer["note"])
    size = f"{answer['num_parameters']:,} parameters, {answer['bytes'] / 2**20:,.1f} MiB"
    print(f"exported step {answer['step']:,} ({Path(answer['checkpoint']).name}): {size}")
    if check is not None:
        equal = "equal" if check["equal"] else "different"
        print(f"compiled: outputs {equal} on {check['compared']} ({check['tolerance']})")
        pace = (
            f"{check['eager_ms']:.1f} ms as written, {check['compiled_ms']:.1f} ms compiled ({check['speed_up']:+.0%})"
        )
        print(f"compiled: {pace}; {check['measured']}; compiling took {check['compile_s']:.0f} s")
    print(f"export: {target}")
