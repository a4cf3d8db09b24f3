"""`paceline bench ranges`: where the time of a profiled run went, as a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.arguments import Debug, Json


def command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run with a profile of some of its steps.")],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Share out the time of the profiled steps of a run to their phases, and to what its recipe marks inside them.

    Example: paceline bench ranges runs/profiled
    """
    from rich.console import Console
    from rich.table import Table

    from paceline.bench.range_trace import measure_ranges

    found = measure_ranges(Path(run))
    if as_json:
        print(json.dumps(found))
        return
    title = f"{found['trace']}, {found['num_steps']} steps: {found['clock']}"
    table = Table("range", "inside", "times", "ms a step", "share", title=title, title_justify="left")
    for row in found["ranges"]:
        table.add_row(row["name"], row["inside"], f"{row['calls']:,}", f"{row['ms']:,.3f}", f"{row['share']:.1%}")
    console = Console()
    console.print(table)
    if found["note"]:
        console.print(found["note"], soft_wrap=True, markup=False, highlight=False)
