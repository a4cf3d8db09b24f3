"""`paceline play`: the phases of a playbook, one after another, hands off; the same command goes on where it was."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.arguments import Debug


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
    start: Annotated[str | None, typer.Option("--from", metavar="P1", help="Only this phase and those after it.")] = None,
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
    from paceline.playbook.playbook import load_playbook
    from paceline.playbook.runner import Play
    from paceline.playbook.selection import select

    book = load_playbook(playbook, overrides or [])
    play = Play(book, select(book, phases, start), out or Path("runs") / book.name)
    play.check()
    if dry_run:
        print("\n".join(play.dry_run()))
        return
    play.run()
