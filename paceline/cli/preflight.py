"""`paceline preflight`: is this machine fit to train on? Exit code 3 where training would certainly break."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.arguments import Debug, Gpus, Json, Nproc, Overrides, launch_flags
from paceline.cli.asking import can_ask, waiting
from paceline.cli.sizes import ask_sizes
from paceline.errors import PacelineError, UsageError
from paceline.preflight.check import Check, Report, from_problems, warn
from paceline.preflight.ranks import check_ranks
from paceline.preflight.runner import MACHINE, QUICK, run_families
from paceline.preflight.snapshot import write_snapshot
from paceline.preflight.subject import Subject, build_subject
from paceline.recipes.job import Flags, Job, load_job


def command(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[RECIPE|CONFIG]", help="A recipe or a YAML file; without it, the machine alone."),
    ] = None,
    overrides: Overrides = None,
    nproc: Nproc = None,
    gpus: Gpus = None,
    out: Annotated[str | None, typer.Option("--out", metavar="DIR", help="The run directory (run.out).")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only what needs no torch: no ranks are started, nothing is counted.")
    ] = False,
    snapshot: Annotated[
        Path | None,
        typer.Option(
            "--snapshot",
            metavar="DIR",
            help="Also keep what this machine is: git_sha.txt, collect_env.txt, nvidia_smi.xml.",
        ),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Is this machine fit to train on, and this configuration on it?

    Example: paceline preflight sasrec --nproc 2
    """
    flags = launch_flags(nproc, gpus)
    if out is not None:
        flags["run.out"] = (out, "flag --out")
    job = load_job(target, overrides or [], flags) if target is not None else None
    if snapshot is not None:
        with waiting("writing down what this machine is"):
            write_snapshot(snapshot)
    report = examine(job, flags, is_quick=quick)
    if as_json:
        print(json.dumps(report.to_record(), indent=2, ensure_ascii=False))
    else:
        _print(report)
    if report.status == "fail":
        raise typer.Exit(3)


def examine(job: Job | None, flags: Flags, *, is_quick: bool) -> Report:
    """Everything that can be said about this machine and this job."""
    began = time.monotonic()
    subject, wrong = build_subject(job, flags)
    if not is_quick:
        subject, failed = _count(subject)
        wrong += failed
    with waiting("looking at the machine"):
        families = dict(run_families(QUICK, subject).families)
    families["training"] = [*wrong, *families["training"]]
    if not is_quick:
        families["ranks"] = _try_ranks(subject, families)
    return Report(families, time.monotonic() - began)


def _count(subject: Subject) -> tuple[Subject, list[Check]]:
    """Asks a worker for parameters and samples, where it can know them."""
    if subject.job is None or subject.job.recipe.foreign is not None or subject.identity is None or not can_ask():
        return subject, []
    try:
        with waiting("counting parameters and samples in a worker process"):
            sizes = ask_sizes(subject.job.target, subject.job.overrides)
    except UsageError as error:
        return subject, from_problems("data and model", error.problems)
    except PacelineError as error:
        problem = error.problems[0]
        return subject, [warn("data and model", f"could not be counted: {problem.what}", problem.do)]
    return dataclasses.replace(subject, sizes=sizes), []


def _try_ranks(subject: Subject, families: dict[str, list[Check]]) -> list[Check]:
    """Not where it would only take long to say again what is said already."""
    if any(check.status == "fail" for family in (*MACHINE, "training") for check in families[family]):
        return [warn("collective", "not tried: what fails above comes first", "mend that, then run preflight again")]
    with waiting(f"starting {subject.world_size} rank{'' if subject.world_size == 1 else 's'} that measure"):
        return check_ranks(subject)


def _print(report: Report) -> None:
    from rich.table import Table
    from rich.text import Text

    from paceline.launch.progress import build_console

    styles = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    table = Table("check", "", expand=True)
    table.add_column("found", ratio=5, overflow="fold")
    table.add_column("remedy", ratio=3, overflow="fold")
    for checks in report.families.values():
        for check in checks:
            table.add_row(
                Text(check.name), Text(check.status, styles[check.status]), Text(check.found), Text(check.remedy)
            )
        if checks:
            table.add_section()
    build_console().print(table)
    counts = [f"{len(report.having(status))} {status}" for status in ("ok", "warn", "fail")]
    verdict = {
        "ok": "fit to train on",
        "warn": "fit to train on, with reservations",
        "fail": "training would break here",
    }[report.status]
    print(f"{verdict}: {', '.join(counts)}, in {report.seconds:.1f} s")
