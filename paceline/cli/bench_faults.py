"""`paceline bench faults`: faults planted into real runs, and what was noticed of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.arguments import Debug, Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from paceline.bench.faults.score import Score


def command(
    runs: Annotated[int, typer.Option("--runs", min=1, help="Cells of each fault.")] = 5,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="FAULT", help="Only this fault, or these (slow, clean); again for more."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Of ranks, steps and sizes (any, and printed).")
    ] = None,
    out: Annotated[
        str, typer.Option("--out", metavar="DIR", help="The ledger, and the cells that went wrong.")
    ] = "runs/faults",
    plain: Annotated[
        bool, typer.Option("--plain", help="Once each under a plain torchrun instead, capped at 120 s.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run faults × ranks × steps on gloo, and count what was noticed, how fast, and who was named; goes on where it stopped.

    Example: paceline bench faults --runs 1 --only sigstop --only loop
    """
    from rich.console import Console

    from paceline.bench.faults.matrix import Matrix
    from paceline.bench.faults.plainly import run_plain
    from paceline.launch.progress import build_console

    place, said = Path(out), Console(stderr=True)
    if plain:
        matrix = Matrix(place / "plain", seed, 1, only or [], run_plain, keep=True)
    else:
        matrix = Matrix(place, seed, runs, only or [])
    try:
        missing, total = len(matrix.missing()), len(matrix.cells)
        said.print(f"seed {matrix.seed}; {total} cells, {total - missing} of them done; ledger {matrix.ledger}")
        if matrix.num_foreign:
            said.print(f"{matrix.num_foreign} records of other code do not count", style="yellow")
        for number, record in enumerate(matrix.run(), 1):
            said.print(f"{number}/{missing}  {_plain_line(record) if plain else _line(record)}", highlight=False)
        records = matrix.records()
    finally:
        matrix.close()
    if plain:
        _show_plain(records, build_console(), as_json)
    else:
        _show(matrix.seed, records, build_console(), as_json)


def _line(record: dict[str, Any]) -> str:
    from paceline.bench.faults.score import score

    each, cell = score(record), record["cell"]
    where = f"rank {cell['rank']} of {cell['nproc']}, step {cell['step']}"
    latency = f"{each.latency_s:.1f} s" if each.latency_s is not None else "-"
    verdict = "right" if each.is_right else "not valid" if not each.is_valid else "WRONG"
    return "  ".join(
        filter(None, [each.cell, where, f"{verdict}: {each.said} after {latency}", each.why, *each.alarms])
    )


def _show(seed: int, records: Sequence[dict[str, Any]], console: Console, as_json: bool) -> None:
    from paceline.bench.faults.score import confusion, score, summarize, summarize_all

    scores = [score(record) for record in records]
    rows, whole = summarize(scores), summarize_all(scores)
    columns, matrix = confusion(scores)
    if as_json:
        table = {name: dict(row) for name, row in matrix.items()}
        print(json.dumps({"seed": seed, "rows": rows, "all": whole, "confusion": table, "wrong": _wrong(scores)}))
        return
    from rich.table import Table

    shown = Table("fault", "runs", "noticed", "in time", "median", "most", "rank", "cause", "alarms", "stacks")
    for row in rows:
        unit = row["latency_unit"]
        shown.add_row(
            row["fault"],
            f"{row['runs']}" + (f" (+{row['invalid']} not valid)" if row["invalid"] else ""),
            "" if row["is_clean"] else f"{row['noticed']}",
            "" if row["is_clean"] else f"{row['in_time']}",
            "" if row["latency"] is None else f"{row['latency']:.1f} {unit}",
            "" if row["latency_most"] is None else f"{row['latency_most']:.1f} {unit}",
            f"{row['culprit_right']}/{row['culprit_asked']}" if row["culprit_asked"] else "",
            "" if row["is_clean"] else f"{row['cause_right']}",
            f"{row['alarms']}",
            f"{row['stacks_right']}/{row['stacks_asked']}" if row["stacks_asked"] else "",
        )
    console.print(shown)
    said = Table("fault", *columns, title="what was said first")
    for name, counts in matrix.items():
        said.add_row(name, *(str(counts[kind]) if counts[kind] else "" for kind in columns))
    console.print(said)
    print(
        f"{whole['faulty']} faulty runs: {whole['noticed']} noticed, {whole['in_time']} in time, rank right "
        f"{whole['culprit_right']}/{whole['culprit_asked']}, cause right {whole['cause_right']}/{whole['faulty']}, stacks of all "
        f"within 5 s {whole['stacks_right']}/{whole['stacks_asked']}; {whole['clean']} clean runs, {whole['clean_with_alarm']} with an "
        f"alarm; alarms before a fault {whole['alarms_before']}; straggler alarms without one {whole['straggler_alarms']}; seed {seed}"
    )
    for line in _wrong(scores):
        print(line)


def _wrong(scores: Sequence[Score]) -> list[str]:
    return [f"{each.cell}: {each.why or ', '.join(each.alarms)}" for each in scores if not each.is_right]


def _plain_line(record: dict[str, Any]) -> str:
    cell = record["cell"]
    seconds = record["noticed_s"]
    said = "nothing" if seconds is None else f"ended after {seconds:.1f} s, rank {record['rank']} named"
    return f"{cell['fault']}  rank {cell['rank']} of {cell['nproc']}: {said}"


def _show_plain(records: Sequence[dict[str, Any]], console: Console, as_json: bool) -> None:
    if as_json:
        print(json.dumps(records))
        return
    from rich.table import Table

    table = Table(
        "fault", "ranks", "guilty", "seconds until it ended", "named", title="plain torchrun, capped at 120 s"
    )
    for record in records:
        cell, seconds = record["cell"], record["noticed_s"]
        ended = "-" if seconds is None else f"{seconds:.1f}"
        named = "-" if record["rank"] is None else str(record["rank"])
        table.add_row(cell["fault"], str(cell["nproc"]), str(cell["rank"]), ended, named)
    console.print(table)
