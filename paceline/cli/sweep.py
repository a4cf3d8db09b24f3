"""`paceline sweep`: which configuration of a plan is the best one here; goes on by itself where it stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.arguments import Debug


def command(
    plan: Annotated[
        str,
        typer.Argument(
            metavar="PLAN", help="A plan that ships, by name, or a YAML file; docs/sweeps.md says what may be in it."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Keys of the plan, or settings that all cases share."),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="The sweep's directory; without it runs/sweep-<plan>.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the matrix, its cost and the time it should take; start nothing.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run trials again that failed in an earlier start.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Compare the cases of a plan by measured trials; the same command again goes on where it stopped.

    Example: paceline sweep plan.yaml steps=100 --out runs/buckets
    """
    from paceline.cli.sweeping import sweep

    exit_code = sweep(plan, overrides or [], Path(out) if out is not None else None, dry_run, retry_failed)
    if exit_code:
        raise typer.Exit(exit_code)
