"""`paceline bench startup`: time to the first step."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from paceline.cli.arguments import Debug, Json


def command(
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Pairs of starts.")] = 5,
    nproc: Annotated[int, typer.Option("--nproc", min=1, help="Worker processes.")] = 2,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Start a bare torchrun script and `paceline train` in turn, and compare when each has made its first step.

    Example: paceline bench startup --repeats 9
    """
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from paceline.bench.startup import measure, summarize

    measured = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting both sides in turn", total=repeats)
        for repeat in measure(repeats, nproc):
            measured.append(repeat)
            progress.advance(task)
    summary = summarize(measured)
    if as_json:
        print(json.dumps(summary))
        return
    table = Table("repeat", "bare torchrun, s", "paceline train, s", "ratio", title="time to the first step")
    for index, repeat in enumerate(measured, start=1):
        ratio = repeat.paceline_s / repeat.bare_s
        table.add_row(str(index), f"{repeat.bare_s:.2f}", f"{repeat.paceline_s:.2f}", f"{ratio:.3f}")
    table.add_section()
    table.add_row("median", f"{summary['bare_s']:.2f}", f"{summary['paceline_s']:.2f}", f"{summary['ratio']:.3f}")
    Console().print(table)
    print(
        f"spread of the ratio {summary['ratio_lowest']} to {summary['ratio_highest']}; target at most {summary['target']}"
    )
