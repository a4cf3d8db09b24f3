"""`paceline train`: trains a recipe or configuration on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.cli.arguments import Debug, Gpus, Nproc, Overrides, Target, launch_flags


def command(
    target: Target,
    overrides: Overrides = None,
    nproc: Nproc = None,
    gpus: Gpus = None,
    out: Annotated[str | None, typer.Option("--out", metavar="DIR", help="The run directory (run.out).")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and a command line to paste; start nothing.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Train a recipe or configuration on one or more ranks.

    Example: paceline train sasrec train.max_steps=200 --nproc 2
    """
    from paceline.launch.warm import WarmAgent

    # Before our own imports: the agent's import of torch takes longest, and both go on side by side.
    warm = None if dry_run else WarmAgent()
    try:
        from paceline.cli.launching import launch
        from paceline.recipes.job import load_job

        flags = launch_flags(nproc, gpus)
        if out is not None:
            flags["run.out"] = (out, "flag --out")
        exit_code = launch(load_job(target, overrides or [], flags), dry_run, debug, warm)
    finally:
        if warm is not None:
            warm.close()
    if exit_code:
        raise typer.Exit(exit_code)
