"""`paceline bench tables`: bytes that the gradients of an embedding table bring to a rank."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

from paceline.cli.arguments import Debug, Json


def command(
    rows: Annotated[int, typer.Option("--rows", min=1, help="Rows of the table.")] = 3_300_000,
    width: Annotated[int, typer.Option("--width", min=1, help="Numbers in a row.")] = 512,
    lookups: Annotated[
        int, typer.Option("--lookups", min=64, help="Rows that a step looks up, over all ranks.")
    ] = 35_328,
    nproc: Annotated[int, typer.Option("--nproc", min=1, help="Ranks.")] = 2,
    optimizer: Annotated[
        Literal["sgd", "adamw"], typer.Option("--optimizer", help="adamw keeps two tables more on every rank.")
    ] = "sgd",
    compression: Annotated[
        Literal["none", "bf16", "fp16"], typer.Option("--compression", help="As parallel.compression.")
    ] = "none",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a table of embeddings, and tell what its gradients bring to a rank in a step, beside what dense ones would.

    Example: paceline bench tables --rows 3300000 --width 512 --nproc 2
    """
    from paceline.bench.tables import measure
    from paceline.cli.asking import waiting

    with waiting("training a table"):
        told = measure(rows, width, lookups, nproc, optimizer=optimizer, compression=compression)
    if as_json:
        print(json.dumps(told))
        return
    print(f"{rows:,} × {width:,}, {told['nproc']} ranks over {told['backend']}, {told['device']}, {optimizer}")
    print(f"a step looks {told['lookups']:,} rows up and touches {told['touched_rows']:,.0f} of them")
    dense = f"dense gradients would bring {told['dense_bytes'] / 1e6:,.1f} MB"
    ratio = f", {told['ratio']:,.0f} times as much" if told["ratio"] else ""
    print(f"{told['bytes'] / 1e6:,.1f} MB come to a rank from the others; {dense}{ratio}")
    print(f"step {told['step_ms']:,.1f} ms, of which {told['update_ms']:,.1f} are exchange and update")
