"""`paceline bench telemetry`: what telemetry costs a step."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from paceline.cli.arguments import Debug, Json, Parameters


def command(
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Pairs of blocks, with it and without.")] = 40,
    nproc: Annotated[int, typer.Option("--nproc", min=1, help="Worker processes.")] = 1,
    parameters: Parameters = 1e6,
    tokens: Annotated[
        int | None, typer.Option("--tokens", min=1, help="Vectors in a batch (256 on a CPU, 4096 on a GPU).")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train with telemetry on and off in turn, within one run, and time each of its calls.

    Example: paceline bench telemetry --repeats 40
    """
    from rich.console import Console
    from rich.table import Table

    from paceline.bench.telemetry import measure
    from paceline.cli.asking import waiting

    with waiting("training with telemetry on and off, in turn"):
        cost = measure(repeats, nproc, parameters=parameters, tokens=tokens)
    summary = cost.summary()
    if as_json:
        print(json.dumps(summary))
        return
    title = f"{summary['parameters']:,} parameters on {summary['world_size']} × {summary['device']}"
    table = Table("part", "µs a call", title=title)
    for name, value in summary["parts_us"].items():
        table.add_row(name, f"{value:,.2f}")
    table.add_section()
    table.add_row("all calls of a step", f"{summary['direct_us']:,.2f}")
    Console().print(table)
    print(
        f"a step without telemetry takes {summary['step_ms']} ms; with it {_percent(summary['share'])} more "
        f"({_percent(summary['share_low'])} to {_percent(summary['share_high'])}, 95 %, {summary['pairs']} pairs of "
        f"{summary['block_steps']} steps); its calls alone are {_percent(summary['direct_share'])}; "
        f"target at most {_percent(summary['target'])}"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
