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
from paceline.launch.hosts.endpoint import parse_count
from paceline.preflight.check import Check, Report, from_problems, warn
from paceline.preflight.hosts import check_hosts, has_several
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
    nnodes: Annotated[
        str | None,
        typer.Option(
            "--nnodes",
            metavar="N|MIN:MAX",
            help="Check so many hosts together (launch.nnodes): type the same command on each; 1: this one alone.",
        ),
    ] = None,
    rdzv: Annotated[
        str | None,
        typer.Option(
            "--rdzv",
            metavar="HOST:PORT",
            help="Where the hosts meet (launch.rdzv): an address of the first one, a free port.",
        ),
    ] = None,
    interface: Annotated[
        str | None,
        typer.Option(
            "--interface",
            metavar="NAME",
            help="This host's network interface (launch.interface); else the one towards --rdzv.",
        ),
    ] = None,
    wait: Annotated[
        float, typer.Option("--wait", metavar="S", min=1, help="How many seconds to wait for the other hosts.")
    ] = 60.0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Is this machine fit to train on, and this configuration on it? With several hosts (--nnodes, --rdzv): are they, together?

    Example: paceline preflight sasrec --nproc 2
    """
    flags = launch_flags(nproc, gpus, nnodes, rdzv, interface)
    if nnodes is not None and parse_count(nnodes, "flag --nnodes").most == 1 and rdzv is None:
        flags["launch.rdzv"] = ("", "flag --nnodes")  # this host alone, wherever the configuration lets them meet
    if out is not None:
        flags["run.out"] = (out, "flag --out")
    job = load_job(target, overrides or [], flags) if target is not None else None
    if snapshot is not None:
        with waiting("writing down what this machine is"):
            write_snapshot(snapshot)
    report = examine(job, flags, is_quick=quick, wait_s=wait)
    if as_json:
        print(json.dumps(report.to_record(), indent=2, ensure_ascii=False))
    else:
        _print(report)
    if report.status == "fail":
        raise typer.Exit(3)


def examine(job: Job | None, flags: Flags, *, is_quick: bool, wait_s: float) -> Report:
    """Everything that can be said about this machine and this job, and about the hosts together."""
    began = time.monotonic()
    subject, wrong = build_subject(job, flags)
    hosts: dict[str, list[Check]] = {}
    launch = subject.config.launch
    if _are_several(subject, "launch.interface" in flags):  # first, while the others wait: one by itself takes longer
        with waiting(f"waiting for {launch.nnodes} hosts at {launch.rdzv}, then measuring between them"):
            hosts["hosts"] = check_hosts(subject, wait_s)
    if not is_quick:
        subject, failed = _count(subject)
        wrong += failed
    with waiting("looking at the machine"):
        families = dict(run_families(QUICK, subject).families)
    families["training"] = [*wrong, *families["training"]]
    if not is_quick:
        families["ranks"] = _try_ranks(subject, families)
    return Report(hosts | families, time.monotonic() - began)


def _are_several(subject: Subject, has_interface: bool) -> bool:
    """Whether several hosts are to be checked; UsageError where only a part of what that needs was given."""
    launch, origins = subject.config.launch, subject.origins
    if has_several(launch, origins) and launch.rdzv:
        return True
    if not has_several(launch, origins) and not launch.rdzv and not has_interface:
        return False
    given = "launch.nnodes" if has_several(launch, origins) else "launch.rdzv" if launch.rdzv else "launch.interface"
    do = "write it like --nnodes 2 --rdzv node-a:29500, the same on every host"
    raise UsageError("several hosts need --nnodes and --rdzv, both on every host", origins[given], do)


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
