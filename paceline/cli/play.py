"""`paceline play`: the phases of a playbook, one after another, hands off; the same command goes on where it was."""

from __future__ import annotations

from collections.abc import Sequence
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
    start: Annotated[
        str | None, typer.Option("--from", metavar="P1", help="Only this phase and those after it.")
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
    from paceline.playbook.playbook import load_playbook
    from paceline.playbook.preview import check_play, describe_play
    from paceline.playbook.runner import Play
    from paceline.playbook.selection import select
    from paceline.playbook.stage import Stage

    book = load_playbook(playbook, overrides or [])
    stage = Stage(book, select(book, phases, start), (out or Path("runs") / book.name).absolute())
    check_play(stage, _metrics)
    if dry_run:
        print("\n".join(describe_play(stage)))
        return
    Play(stage).run()


def _metrics(config: str, overrides: Sequence[str]) -> list[str]:
    """The names of a recipe's metrics; where torch is not installed nothing can be known."""
    from paceline.cli.asking import waiting
    from paceline.cli.sizes import ask_sizes

    with waiting("asking for the recipe's metrics"):
        return list(ask_sizes(config, overrides)["metrics"])
