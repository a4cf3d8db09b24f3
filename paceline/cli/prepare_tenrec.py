"""`paceline prepare tenrec`: impressions become columns that all ranks map; says what was found and what to type next."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.arguments import Debug
from paceline.cli.progress import showing_progress
from paceline.errors import Interrupted, UsageError
from paceline.recipes.tenrec.request import Request

if TYPE_CHECKING:
    from paceline.recipes.tenrec.prepare import Preparation

_MOST = 2**31 - 1


def command(
    output: Annotated[
        Path,
        typer.Option(
            "--output", "--out", metavar="DIR|FILE", help="Where to write; with --generate a .csv or .parquet file."
        ),
    ],
    source: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="A .csv or .parquet file of the Tenrec schema: ctr_data_1M.csv."),
    ] = None,
    max_users: Annotated[
        float | None, typer.Option("--max-users", metavar="N", help="Only the first N users of the file.")
    ] = None,
    generate: Annotated[
        float | None, typer.Option("--generate", metavar="ROWS", help="Write generated rows instead: 1e7.")
    ] = None,
    users: Annotated[
        float | None, typer.Option("--users", metavar="N", help="With --generate: one for 100 rows.")
    ] = None,
    items: Annotated[
        float | None, typer.Option("--items", metavar="N", help="With --generate: one for 500 rows, at least 100.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="With --generate: 0.")] = None,
    debug: Debug = False,
) -> None:
    """Impressions in the Tenrec schema as columns that all ranks of a host share; or such a file, generated.

    Example: paceline prepare tenrec --input ctr_data_1M.csv --output data/tenrec --max-users 50000
    """
    only_generated = {"--users": users, "--items": items, "--seed": seed}
    if (source is None) == (generate is None):
        what = "--input and --generate name two sources" if source else "neither --input nor --generate is given"
        raise UsageError(what, "command line", "give one of them")
    if generate is None:
        for flag, value in only_generated.items():
            if value is not None:
                raise UsageError(
                    f"{flag} is of generated rows", "command line", f"leave {flag} out, or --generate ROWS"
                )
    elif max_users is not None:
        do = "leave it out, and say how many are generated: --users N"
        raise UsageError("--max-users is of --input", "command line", do)
    try:
        if generate is not None:
            _generate(output, generate, users, items, seed or 0)
        else:
            assert source is not None
            _prepare(Request(source, output, None if max_users is None else _count("--max-users", max_users)))
    except KeyboardInterrupt:
        raise Interrupted("interrupted", "", "type the same again: it begins anew, nothing is left half done") from None


def _prepare(request: Request) -> None:
    # numpy, which the command line does without until then
    from paceline.recipes.tenrec.prepare import prepare

    with showing_progress() as report:
        preparation = prepare(request, report)
    _print(preparation)


def _generate(file: Path, rows: float, users: float | None, items: float | None, seed: int) -> None:
    if seed < 0:
        raise UsageError(f"--seed {seed} is negative", "command line", "give 0 or more")
    from paceline.recipes.tenrec.generate import Generator
    from paceline.recipes.tenrec.written import write_generated

    num_rows = _count("--generate", rows)
    num_users = max(1, num_rows // 100) if users is None else _count("--users", users)
    num_items = max(100, num_rows // 500) if items is None else _count("--items", items)
    with showing_progress() as report:
        write_generated(Generator(num_users, num_items, num_rows, seed), file, report)
    print(f"wrote {num_rows:,} rows of {num_users:,} users and {num_items:,} items: {file}")
    print(f"next: paceline prepare tenrec --input {shlex.quote(str(file))} --output data/tenrec")


def _count(flag: str, value: float) -> int:
    """1e7 is easier to type than its zeros."""
    if not (1 <= value <= _MOST and value == int(value)):
        raise UsageError(f"{flag} {value:g} is no number from 1 to {_MOST:,}", "command line", f"such as {flag} 50000")
    return int(value)


def _print(preparation: Preparation) -> None:
    counts = preparation.prepared.counts
    for note in preparation.notes:
        print(note)
    share = counts["clicks"] / counts["rows"]
    print(
        f"{counts['rows']:,} rows of {counts['users']:,} users and {counts['items']:,} items, {share:.1%} of them clicked"
    )
    if counts["rows_left_out"]:
        print(f"left out: {counts['rows_left_out']:,} rows of users after the first {counts['users']:,}")
    said = {
        "rows_without_history": "rows without history: kept",
        "rows_with_item_in_history": "rows whose item is in their history: kept",
        "actions_not_said": "actions that the source does not say: taken as not done",
        "rows_of_another_gender_or_age": "rows with another gender or age than the user's first: the first counts",
        "rows_of_another_category": "rows with another category than the item's first: the first counts",
    }
    for key, phrase in said.items():
        if counts[key]:
            print(f"{counts[key]:,} {phrase}")
    size = sum(made.bytes for made in preparation.prepared.files.values()) / 2**20
    did = "wrote" if preparation.is_new else "nothing to do, verified:"
    print(f"{did} {len(preparation.prepared.files)} columns, {size:,.1f} MiB, in {preparation.directory}")
    scope = f" data.max_users={counts['users']}" if counts["rows_left_out"] else ""
    print(f"next: paceline train tenrec data.path={shlex.quote(str(preparation.directory))}{scope}")
