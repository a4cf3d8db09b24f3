"""`paceline bench scaling`: what more ranks bring."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from paceline.cli.arguments import Debug, Json
from paceline.errors import UsageError


def command(
    ranks: Annotated[str, typer.Option("--ranks", metavar="1,2,4", help="The world sizes.")] = "1,2,4",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Rounds, each world size once.")] = 3,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train on several numbers of ranks, with the same batch per rank and with the same batch over all of them.

    Example: paceline bench scaling --ranks 1,2
    """
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from paceline.bench.scaling import count_runs, measure, summarize

    words = ranks.split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise UsageError(f"--ranks {ranks} is not a list of world sizes", "--ranks", "write it like --ranks 1,2,4")
    sizes, timed = [int(word) for word in words], []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("training on every number of ranks", total=count_runs(sizes, repeats))
        for each in measure(sizes, repeats):
            timed.append(each)
            progress.advance(task)
    rows = summarize(timed)
    if as_json:
        print(json.dumps(rows))
        return
    table = Table("scaling", "ranks", "vectors a rank", "step, ms", "efficiency", "from … to", title=rows[0]["device"])
    for row in rows:
        spread = f"{row['efficiency_lowest']:.3f} … {row['efficiency_highest']:.3f}"
        cells = (row["kind"], str(row["ranks"]), f"{row['tokens']:,}", f"{row['step_ms']:.2f}")
        table.add_row(*cells, f"{row['efficiency']:.3f}", spread)
    Console().print(table)
    print(f"medians of {repeats} repeats; weak: the same batch per rank; strong: the same batch over all ranks")
