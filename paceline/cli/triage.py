"""`paceline triage`: the smallest change that cures a run, found by trials."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.arguments import Debug, Gpus, Json, Nproc, Overrides, launch_flags

if TYPE_CHECKING:
    from paceline.triage.climb import Outcome
    from paceline.triage.session import Session


def command(
    target: Annotated[str, typer.Argument(metavar="RUN|CONFIG", help="A run directory, a recipe, or a YAML file.")],
    overrides: Overrides = None,
    nproc: Nproc = None,
    gpus: Gpus = None,
    symptom: Annotated[
        str | None,
        typer.Option(
            "--symptom",
            metavar="WORD",
            help="deadlock, out_of_memory, instability or low_throughput; without it, what the run or a trial shows.",
        ),
    ] = None,
    ladder: Annotated[str | None, typer.Option("--ladder", metavar="FILE", help="A ladder of your own.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=5, help="Optimizer steps of a trial.")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Go on with the real run, cured.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Trials and ledger; without it, RUN-triage.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Reproduce what is wrong with a run in a short trial, change one thing at a time, and confirm the first cure.

    Example: paceline triage runs/mine --symptom deadlock
    """
    from rich.console import Console

    from paceline.errors import GateError, OccupiedError, UsageError
    from paceline.files import is_locked
    from paceline.telemetry.layout import RunLayout
    from paceline.triage.ladder import SYMPTOMS
    from paceline.triage.page import describe, to_record
    from paceline.triage.session import Options, Session

    if symptom is not None and symptom not in SYMPTOMS:
        raise UsageError(f"there is no symptom {symptom!r}", "flag --symptom", f"one of {', '.join(SYMPTOMS)}")
    if Path(target).is_dir() and is_locked(RunLayout(Path(target)).owner_lock):
        raise OccupiedError(
            "this run is running: its trials would fight it for the machine", target, f"paceline stop {target}"
        )
    said = Console(stderr=True)
    session = Session(target, overrides or [], launch_flags(nproc, gpus), Options(symptom, ladder, steps, out))
    said.print(f"triage {session.out}", highlight=False, markup=False)
    outcome = session.run(lambda line: said.print(line, highlight=False, markup=False))
    command_line = session.cure_command(outcome)
    if as_json:
        print(json.dumps(to_record(outcome, command_line)))
    else:
        _show(outcome, session)
    if outcome.state != "cured":
        raise GateError(
            describe(outcome)[0], str(session.out / "triage.md"), describe(outcome)[-1].removeprefix("do: ")
        )
    if apply:
        _apply(session, outcome, debug)


def _show(outcome: Outcome, session: Session) -> None:
    from rich.table import Table

    from paceline.launch.progress import build_console
    from paceline.triage.page import describe, rows

    table = Table(
        "change", "settings", "price", "result", "samples/s", "what was seen", title=f"symptom: {outcome.symptom}"
    )
    for row in rows(outcome):
        table.add_row(*row)
    build_console().print(table)
    if outcome.state == "cured":
        print("\n".join(describe(outcome)))
        print("do: " + shlex.join(session.cure_command(outcome) or []))


def _apply(session: Session, outcome: Outcome, debug: bool) -> None:
    """The real run, from where it is, with the cure; as `paceline train` would do it."""
    from paceline.cli.launching import launch
    from paceline.launch.origin import Wish
    from paceline.recipes.job import load_job

    arguments = session.cure_arguments(outcome)
    assert arguments is not None
    target, overrides, out, resume = arguments
    flags = {"run.out": (out, "the run that was triaged")} if out else {}
    exit_code = launch(load_job(target, overrides, flags), Wish(resume), False, debug, None)
    if exit_code:
        raise typer.Exit(exit_code)
