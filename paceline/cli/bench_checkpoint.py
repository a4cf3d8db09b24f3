"""`paceline bench checkpoint`: what a save costs the training."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from paceline.cli.arguments import Debug, Json, Parameters


def command(
    parameters: Parameters = 1e7,
    tokens: Annotated[
        int | None, typer.Option("--tokens", min=1, help="Vectors in a batch (512 on a CPU, 8192 on a GPU).")
    ] = None,
    every: Annotated[int, typer.Option("--every", min=2, help="Steps between two saves.")] = 20,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Saves.")] = 9,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train with asynchronous saves, and count what the steps lose until the files are on the disk.

    Example: paceline bench checkpoint --parameters 1e7
    """
    from rich.console import Console
    from rich.table import Table

    from paceline.bench.checkpoint import measure
    from paceline.cli.asking import waiting

    with waiting("training with saves"):
        measured = measure(parameters, tokens, save_every=every, saves=repeats)
    summary = measured.summary()
    if as_json:
        print(json.dumps(summary))
        return
    title = f"{summary['parameters']:,} parameters, {summary['tokens']:,} vectors a step, {summary['device']}"
    table = Table("save at step", "blocked, ms", "stall, ms", "stall, steps", "on the disk after, s", title=title)
    for stall in measured.stalls:
        steps = f"{stall.stall_ms / measured.step_ms:.2f}"
        table.add_row(
            f"{stall.step}", f"{stall.blocked_ms:.1f}", f"{stall.stall_ms:.1f}", steps, f"{stall.seconds:.2f}"
        )
    table.add_section()
    medians = ("blocked_ms", "stall_ms", "stall_steps", "seconds")
    table.add_row("median", *(f"{summary[name]}" for name in medians))
    Console().print(table)
    print(
        f"a step without a save takes {summary['step_ms']} ms (median of {summary['quiet_steps']}); "
        f"a checkpoint has {summary['gigabytes']} GB; target: a stall of at most {summary['target_steps']:g} step"
    )
