"""`paceline bench loader`: whether the loader keeps up."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from paceline.cli.arguments import Debug, Json


def command(
    target: Annotated[str, typer.Argument(metavar="CONFIG", help="A recipe or a YAML file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the configuration.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Load a configuration's batches without its model, with several numbers of loader processes, against what a step needs.

    Example: paceline bench loader sasrec data.placement=host
    """
    from rich.console import Console
    from rich.table import Table

    from paceline.bench.loader import measure
    from paceline.cli.asking import waiting
    from paceline.telemetry.amount import show_amount

    with waiting("training a few steps, then loading without the model"):
        measured = measure(target, overrides or [])
    if as_json:
        print(json.dumps(measured))
        return
    columns = (
        "loader processes",
        "first batch, ms",
        "samples/s",
        "MB/s delivered",
        "MB/s from disk",
        "of what is needed",
    )
    table = Table(*columns, title=f"{target}, {measured['global_batch']} samples a step, one rank")
    for row in measured["rows"]:
        table.add_row(
            str(row["workers"]),
            f"{row['first_batch_ms']:,.1f}",
            show_amount(row["samples_per_s"]),
            f"{row['delivered_mb_per_s']:,.1f}",
            f"{row['disk_mb_per_s']:,.1f}",
            f"{row['times_needed']:.2f} ×",
        )
    Console().print(table)
    print(
        f"a step that never waits for data needs {show_amount(measured['samples_per_s'])} samples/s "
        f"(it takes {measured['step_ms']:.2f} ms, of which {measured['data_ms']:.2f} ms are for data)"
    )
