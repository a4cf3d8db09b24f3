"""The arguments that several commands share, and the configuration keys that flags stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.errors import UsageError

Target = Annotated[str, typer.Argument(metavar="RECIPE|CONFIG", help="The name of a recipe, or a YAML file.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Overrides, such as train.max_steps=100.")
]
Nproc = Annotated[str | None, typer.Option("--nproc", metavar="N", help="Worker processes (launch.nproc).")]
Gpus = Annotated[str | None, typer.Option("--gpus", metavar="0,4", help="Which GPUs to use (launch.gpus).")]
Nnodes = Annotated[
    str | None,
    typer.Option("--nnodes", metavar="N|MIN:MAX", help="Hosts that train together (launch.nnodes); needs --rdzv."),
]
Rdzv = Annotated[
    str | None,
    typer.Option(
        "--rdzv",
        metavar="HOST:PORT",
        help="Where they meet (launch.rdzv), the same on every host; the host with this address leads.",
    ),
]
RunDirectory = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, as `paceline train` printed it.")]
CheckpointWord = Annotated[
    str,
    typer.Option(
        "--checkpoint", metavar="WORD|PATH", help="best, latest, final, a name like step_00000256, or a path."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, for a script.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def check_parameters(value: float) -> float:
    """Not left to typer, whose words for nan are those for a number that is too large."""
    if not 1e6 <= value <= 1e12:
        what = f"--parameters {value:g} is not a size that can be measured (1e6 to 1e12)"
        raise UsageError(what, "flag --parameters", "write it like 1e7")
    return value


Parameters = Annotated[
    float, typer.Option("--parameters", callback=check_parameters, help="Size of the model, 1e6 to 1e12.")
]


def launch_flags(
    nproc: str | None = None,
    gpus: str | None = None,
    nnodes: str | None = None,
    rdzv: str | None = None,
    interface: str | None = None,
) -> dict[str, tuple[Any, str]]:
    """The keys that these flags set; the schema checks their values like any other."""
    flags: dict[str, tuple[Any, str]] = {}
    if nnodes is not None:
        from paceline.config.source import plain_scalar

        flags["launch.nnodes"] = (plain_scalar(nnodes), "flag --nnodes")
    if rdzv is not None:
        flags["launch.rdzv"] = (rdzv, "flag --rdzv")
    if interface is not None:
        flags["launch.interface"] = (interface, "flag --interface")
    if nproc is not None:
        from paceline.config.source import plain_scalar

        flags["launch.nproc"] = (plain_scalar(nproc), "flag --nproc")
    if gpus is not None:
        words = [word.strip() for word in gpus.split(",")] if gpus.strip() else []
        if not all(word.isdecimal() and word.isascii() for word in words):
            raise UsageError(f"--gpus {gpus} is not a list of GPU indices", "flag --gpus", "write it like --gpus 0,4")
        flags["launch.gpus"] = ([int(word) for word in words], "flag --gpus")
    return flags
