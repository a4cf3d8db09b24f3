"""`paceline play`: the phases of a playbook, one after another, hands off; the same command goes on where it was."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.arguments import Debug
from paceline.errors import PacelineError


def command(
    playbook: Annotated[str, typer.Argument(metavar="PLAYBOOK", help="The name of a playbook, or a YAML file.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Overrides: train.epochs=2 for all phases that train, P1.steps=50 for one."
        ),
    ] = None,
    phases: Annotated[
        str | None, typer.Option("--phases", metavar="P0,P1", help="Only these; also those that are off by default.")
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="P1", help="Only this phase and those after it.")
    ] = None,
    skip: Annotated[
        str | None, typer.Option("--skip", metavar="P2,P3", help="All but these; the reason is shown on the page.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where it lives; without it, runs/<playbook>.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print each phase's command; start nothing.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Run the phases of a playbook, each with a gate on its results; the same command again goes on where it was.

    Example: paceline play p0-p3 P1.steps=50 --out runs/first
    """
    from paceline.cli.asking import can_ask
    from paceline.playbook.playbook import load_playbook
    from paceline.playbook.preview import check_play, describe_play
    from paceline.playbook.runner import Play
    from paceline.playbook.selection import select
    from paceline.playbook.stage import Stage

    book = load_playbook(playbook, overrides or [])
    stage = Stage(book, select(book, phases, start, skip), (out or Path("runs") / book.name).absolute())
    check_play(stage, _metrics if can_ask() else None)
    if dry_run:
        print("\n".join(describe_play(stage)))
        return
    try:
        Play(stage).run()
    finally:
        _conclude(stage.root)


def _conclude(root: Path) -> None:
    """Where each phase stands, whatever ended it, and where to read more."""
    from rich.markup import escape
    from rich.table import Table

    from paceline.launch.progress import build_console
    from paceline.playbook.state import load_record
    from paceline.telemetry.layout import RunLayout

    try:
        record = load_record(root)
    except PacelineError:
        return
    page = RunLayout(root).report_page
    if record is None or not page.exists():
        return
    table = Table("phase", "kind", "verdict", title=f"{record.name}: {record.state}", title_justify="left")
    table.add_column("took", justify="right")
    table.add_column("", overflow="fold")
    for phase in record.phases:
        took = f"{phase.seconds:,.1f} s" if phase.attempts else ""
        table.add_row(phase.name, phase.kind, phase.state, took, escape(phase.outdated or phase.reason or phase.note))
    build_console().print(table)
    for phase in record.phases:
        for line in phase.remedy:
            print(f"{phase.name}: type {line}")
    if record.verdict:
        print(f"verdict: {record.verdict}")
    print(f"report: {page}")


def _metrics(config: str, overrides: Sequence[str]) -> list[str]:
    """The names of a recipe's metrics, which only torch can tell; those of a script stand in its configuration."""
    from paceline.cli.asking import waiting
    from paceline.cli.sizes import ask_sizes
    from paceline.recipes.command.words import own_metrics
    from paceline.recipes.job import load_job

    job = load_job(config, overrides)
    if job.recipe.foreign is not None:
        return own_metrics(job.config)
    with waiting("asking for the recipe's metrics"):
        return list(ask_sizes(config, overrides)["metrics"])
