"""`paceline bench parity`: whether this machine's paths of sparse attention compute what the reference says, as a table."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from paceline.cli.arguments import Debug, Json
from paceline.cli.whole_table import print_whole
from paceline.errors import GateError


def command(
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=2**63 - 1, help="Another seed, other numbers to compare on.")
    ] = 0,
    length: Annotated[
        int, typer.Option("--length", min=1, max=2**31 - 1, help="Tokens of the row that is timed.")
    ] = 2048,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Hold every path of native sparse attention to a reference in float64, outputs and all gradients, and time the paths.

    Example: paceline bench parity --length 8192
    """
    from paceline.cli.asking import ask_worker, waiting

    with waiting("comparing with the reference, and timing"):
        measured = ask_worker(["paceline.bench.parity", "--seed", str(seed), "--length", str(length)])
    if as_json:
        print(json.dumps(measured))
    else:
        print(f"{measured['device']}, torch {measured['torch']}; fast: {measured['fast']}")
        print_whole(build_table(measured))
        for path, times in measured["times"].items():
            spent = f"forward {times['forward_ms']:,.2f} ms, backward {times['backward_ms']:,.2f} ms"
            print(f"{path}, {measured['length']:,} tokens, one layer of 12 heads in 2 groups: {spent}")
    if not measured["ok"]:
        wrong = [f"{row['path']} in {row['precision']}, {row['case']}" for row in measured["rows"] if not row["ok"]]
        what = f"not as the reference says: {'; '.join(wrong)}" if wrong else "fast is not faster than torch"
        raise GateError(what, "paceline bench parity", "set model.sparse_path=torch, or reference, and report it")


def build_table(measured: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(
        "case", "path", "precision", "largest error", "of", "limit", "", title="against float64, blocks given"
    )
    for row in measured["rows"]:
        verdict = "ok" if row["ok"] else "WRONG"
        cells = (f"{row['error']:.1e}", row["worst"], f"{row['limit']:g}", verdict)
        table.add_row(row["case"], row["path"], row["precision"], *cells)
    return table
