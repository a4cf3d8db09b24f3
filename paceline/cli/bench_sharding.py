"""`paceline bench sharding`: memory and time of each stage."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

from paceline.cli.arguments import Debug, Json, Parameters


def command(
    parameters: Parameters = 1e7,
    nproc: Annotated[int, typer.Option("--nproc", min=1, help="Ranks.")] = 2,
    engine: Annotated[
        Literal["torch", "deepspeed"], typer.Option("--engine", help="Whose stages: as parallel.engine.")
    ] = "torch",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train at every parallel.zero_stage, and list what lies on a rank, a step's time and what a save costs.

    Example: paceline bench sharding --parameters 1e7 --nproc 3
    """
    from rich.console import Console
    from rich.table import Table

    from paceline.bench.sharding import measure
    from paceline.cli.asking import waiting

    with waiting("training at each stage"):
        rows = list(measure(parameters, nproc, engine=engine))
    if as_json:
        print(json.dumps(rows))
        return
    first = rows[0]
    title = f"{engine}, {first['parameters']:,} parameters, {first['nproc']} ranks over {first['backend']}, {first['device']}"
    names = ("weights_mib", "gradients_mib", "moments_mib", "total_mib", "peak_mib", "step_ms", "stall_ms")
    heads = ("weights", "gradients", "moments", "total, MiB", "peak on the GPU, MiB", "step, ms", "save stall, ms")
    table = Table("stage", *heads, title=title)
    for row in rows:
        table.add_row(str(row["stage"]), *("" if row[name] is None else f"{row[name]:,.1f}" for name in names))
    Console().print(table)
    print("the most that any rank holds in the last step, before its update")
