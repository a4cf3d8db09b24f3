"""`paceline bench faults`: faults planted into real runs, and what was noticed of them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.arguments import Debug, Json

if TYPE_CHECKING:
    from paceline.bench.faults.matrix import Matrix


def command(
    runs: Annotated[int, typer.Option("--runs", min=1, help="Cells of each fault.")] = 5,
    clean_runs: Annotated[
        int | None, typer.Option("--clean-runs", min=1, help="Cells of each kind of clean run (as many).")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="FAULT", help="Only this fault, or these (slow, clean_); again for more."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Of ranks, steps and sizes (any, and printed).")
    ] = None,
    out: Annotated[
        str, typer.Option("--out", metavar="DIR", help="The ledger, the summary, and the cells that went wrong.")
    ] = "runs/faults",
    plain: Annotated[
        bool, typer.Option("--plain", help="Once each under a plain torchrun instead, capped at 120 s.")
    ] = False,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Cells side by side.")] = 1,
    cores: Annotated[int, typer.Option("--cores", min=1, help="CPU cores of a cell.")] = 2,
    minutes: Annotated[
        float | None, typer.Option("--minutes", min=0.1, help="End after so many; the same command goes on.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run faults × ranks × steps on gloo, and count what was noticed, how fast, and who was named; goes on where it stopped.

    Example: paceline bench faults --runs 1 --only sigstop --only loop
    """
    from rich.console import Console

    from paceline.bench.faults.matrix import Matrix, Wanted, build_slots
    from paceline.bench.faults.page import line_of, plain_line_of
    from paceline.bench.faults.plainly import PlainRun
    from paceline.cores import cpu_count
    from paceline.errors import Interrupted
    from paceline.launch.signals import OperatorSignals

    said, began, here = Console(stderr=True), time.monotonic(), sorted(os.sched_getaffinity(0))
    if plain:
        matrix = Matrix(Path(out) / "plain", Wanted(1, 1, only or (), seed), PlainRun, keep=True)
    else:
        matrix = Matrix(Path(out), Wanted(runs, clean_runs or runs, only or (), seed))
    missing, total, cores = len(matrix.missing()), len(matrix.cells), min(cores, len(here))
    said.print(f"seed {matrix.seed}; {total} cells, {total - missing} of them done; ledger {matrix.ledger}")
    if matrix.num_foreign:
        said.print(f"{matrix.num_foreign} records of other code do not count", style="yellow")
    if jobs * cores > cpu_count():
        said.print(f"{jobs} cells of {cores} cores share {cpu_count()}: everything takes longer", style="yellow")

    def is_over() -> bool:
        return signals.asked is not None or (minutes is not None and time.monotonic() - began > 60 * minutes)

    try:
        with OperatorSignals() as signals:
            for number, record in enumerate(matrix.run(build_slots(jobs, cores, here), is_over), 1):
                line = plain_line_of(record) if plain else line_of(record)
                said.print(f"{number}/{missing}  {line}", highlight=False, markup=False, soft_wrap=True)
    finally:
        _conclude(matrix, plain, as_json)
        matrix.close()
    left = len(matrix.missing())
    if signals.asked is not None:
        raise Interrupted(f"interrupted with {left} cells to go", str(matrix.out), "the same command goes on")
    if left:
        said.print(f"{left} cells are left: the same command goes on", style="yellow")


def _conclude(matrix: Matrix, plain: bool, as_json: bool) -> None:
    """The summary as text and for scripts, and what was not understood in one parcel: also of a matrix that was interrupted."""
    from rich.console import Console

    from paceline.bench.faults.page import show_matrix, show_plain, summarize_matrix, summarize_plain
    from paceline.bench.faults.parcel import pack
    from paceline.files import write_json
    from paceline.launch.progress import build_console

    summarize, show = (summarize_plain, show_plain) if plain else (summarize_matrix, show_matrix)
    summary = summarize(matrix.seed, matrix.records(), len(matrix.cells))
    write_json(matrix.out / "summary.json", summary)
    with open(matrix.out / "summary.txt", "w", encoding="utf-8") as file:
        show(summary, Console(file=file, width=160))
    if not plain:
        pack(matrix.out, matrix.wrong())
    if as_json:
        print(json.dumps(summary))
    else:
        show(summary, build_console())
