"""`paceline train`: trains a recipe or configuration on this machine, or together with others."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.cli.arguments import Debug, Gpus, Nnodes, Nproc, Overrides, Rdzv, Target, launch_flags
from paceline.cli.starting_elsewhere import Hostfile, Slurm, start_elsewhere


def command(
    target: Target,
    overrides: Overrides = None,
    nproc: Nproc = None,
    gpus: Gpus = None,
    nnodes: Nnodes = None,
    rdzv: Rdzv = None,
    out: Annotated[str | None, typer.Option("--out", metavar="DIR", help="The run directory (run.out).")] = None,
    resume: Annotated[
        str,
        typer.Option(
            "--resume",
            metavar="auto|never|PATH",
            help="auto: go on with the run in the directory; never: refuse if there is one; a run or checkpoint: fork it into --out.",
        ),
    ] = "auto",
    init_from: Annotated[
        str | None,
        typer.Option("--init-from", metavar="PATH", help="Begin with the weights of a run, checkpoint or export."),
    ] = None,
    max_restarts: Annotated[
        str | None,
        typer.Option(
            "--max-restarts",
            metavar="N",
            help="How often to bring back a run whose rank died (supervise.max_restarts).",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and a command line to paste; start nothing.")
    ] = False,
    hostfile: Hostfile = None,
    slurm: Slurm = None,
    debug: Debug = False,
) -> None:
    """Train a recipe or configuration on one or more ranks; the same command again goes on from the newest checkpoint.

    Example: paceline train sasrec train.max_steps=200 --nproc 2
    """
    if hostfile is not None or slurm:
        raise typer.Exit(start_elsewhere(target, overrides or [], hostfile, slurm, dry_run=dry_run))
    from paceline.launch.warm import WarmAgent, may_need_torch

    # Before our own imports: the agent's import of torch takes longest, and both go on side by side.
    warm = WarmAgent() if not dry_run and may_need_torch(target) else None
    try:
        from paceline.cli.launching import launch
        from paceline.config.source import plain_scalar
        from paceline.launch.origin import Wish
        from paceline.recipes.job import load_job

        flags = launch_flags(nproc, gpus, nnodes, rdzv)
        if out is not None:
            flags["run.out"] = (out, "flag --out")
        if max_restarts is not None:
            flags["supervise.max_restarts"] = (plain_scalar(max_restarts), "flag --max-restarts")
        exit_code = launch(load_job(target, overrides or [], flags), Wish(resume, init_from), dry_run, debug, warm)
    finally:
        if warm is not None:
            warm.close()
    if exit_code:
        raise typer.Exit(exit_code)
