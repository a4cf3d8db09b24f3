"""`paceline bench collective`: what the ranks of this machine exchange per second, by size."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from paceline.cli.arguments import Debug, Json
from paceline.cli.asking import waiting


def command(
    nproc: Annotated[int | None, typer.Option("--nproc", min=1, help="Ranks (one per GPU, 2 without).")] = None,
    sizes: Annotated[
        str | None, typer.Option("--sizes", metavar="4K,1M,64M", help="Sizes of the whole buffer.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option("--repeats", min=1, help="Of each size (50, or as many as fit into 0.4 s).")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Start real ranks, and measure what they exchange.

    Example: paceline bench collective --nproc 2 --sizes 4K,1M
    """
    from rich.table import Table

    from paceline.bench.collective import SIZES, measure, parse_sizes
    from paceline.launch.progress import build_console

    wanted = parse_sizes(sizes or SIZES)
    with waiting(f"measuring {len(wanted)} sizes"):
        found = measure(nproc, wanted, repeats)
    if as_json:
        print(json.dumps(found))
        return
    nccl = f" {found['nccl']}" if found["backend"] == "nccl" else ""
    title = f"{found['world_size']} ranks over {found['backend']}{nccl} ({found['reason']})"
    table = Table("operation", "size", "median, µs", "from … to, µs", "GB/s", "GB/s per link", "repeats", title=title)
    for row in found["rows"]:
        if row["refused"]:
            table.add_row(row["op"], _size(row["bytes"]), "", row["refused"], "", "", "0")
            continue
        spread = f"{row['us_lowest']:,.0f} … {row['us_highest']:,.0f}"
        rates = (f"{row['gb_per_s']:.3f}", f"{row['bus_gb_per_s']:.3f}")
        size = _size(row["bytes"])
        table.add_row(row["op"], size, f"{row['us']:,.0f}", spread, *rates, str(row["repeats"]))
    build_console().print(table)
    print("size: the whole buffer; per link: 2(n-1)/n of it for an all-reduce, (n-1)/n for the others")


def _size(num_bytes: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:,.4g} {name}"
    return f"{num_bytes} B"
