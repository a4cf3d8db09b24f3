"""`paceline bench sasrec`: SASRec beside other systems."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from paceline.cli.arguments import Debug, Json


def command(
    data: Annotated[
        str | None, typer.Option("--data", metavar="FILE", help="Interactions; without it, generated ones.")
    ] = None,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Measured epochs of each start.")] = 3,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Rounds, each system once.")] = 1,
    rival: Annotated[
        list[str] | None,
        typer.Option("--rival", metavar="COMMAND", help="Another system's command; may be given several times."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of ours, such as train.graph=false."),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train and evaluate SASRec in the shape of a well-known implementation, in turn with any other system.

    Example: paceline bench sasrec --data ml-1m.txt --epochs 15
    """
    from rich.console import Console
    from rich.table import Table

    from paceline.bench.sasrec import measure, summarize
    from paceline.cli.asking import waiting

    with waiting("training epochs"):
        measured = list(measure(data, repeats, epochs, rival or [], settings or []))
    rows = summarize(measured)
    if as_json:
        print(json.dumps(rows))
        return
    table = Table("system", "epoch, s", "from … to, s", "targets a second", "evaluation, s", "we are faster by")
    for row in rows:
        evaluation = "" if row["evaluation_s"] is None else f"{row['evaluation_s']:.3f}"
        spread = f"{row['epoch_s_lowest']:.3f} … {row['epoch_s_highest']:.3f}"
        faster = f"{row['paceline_is_faster']:.2f} ×"
        table.add_row(row["system"], f"{row['epoch_s']:.3f}", spread, f"{row['positions_per_s']:,}", evaluation, faster)
    Console().print(table)
