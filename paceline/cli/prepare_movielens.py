"""`paceline prepare movielens`: downloads, or takes a local file, and says what to type next."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.arguments import Debug
from paceline.config.nearest import nearest
from paceline.errors import Interrupted, UsageError
from paceline.recipes.download import Report
from paceline.recipes.prepared import RECORD
from paceline.recipes.sasrec.movielens import Preparation, prepare
from paceline.recipes.sasrec.movielens_input import DATASETS


def command(
    name: Annotated[
        str | None, typer.Argument(metavar="ml-1m|ml-100k", help="Which one; ml-1m, or what --from gives.")
    ] = None,
    given: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="A local archive, its folder, ratings.dat or u.data: no network."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where to write; data/NAME.")] = None,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Another server with the same archive; grouplens.org.")
    ] = None,
    debug: Debug = False,
) -> None:
    """MovieLens 1M or 100K: ratings with their times as RecBole's .inter, titles as .item.

    Example: paceline prepare movielens ml-1m --from ml-1m.zip
    """
    if name is not None and name not in DATASETS:
        what = f"there is no data set {name!r} here (there are: {', '.join(DATASETS)})"
        raise UsageError(what, "command line", f"paceline prepare movielens {nearest(name, DATASETS) or 'ml-1m'}")
    if given is not None and url is not None:
        raise UsageError("--from and --url name two sources", "command line", "give one of them")
    try:
        with _progress() as report:
            preparation = prepare(name, given, out, url, report)
    except KeyboardInterrupt:
        raise Interrupted("interrupted", "", "type the same again: it goes on where it stopped") from None
    _print(preparation)


@contextlib.contextmanager
def _progress() -> Iterator[Report]:
    """A bar on a terminal, from the first byte on; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda here, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("downloading"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None, visible=False)
        yield lambda here, total: progress.update(task, completed=here, total=total, visible=True)


def _print(preparation: Preparation) -> None:
    prepared, counts = preparation.prepared, preparation.prepared.counts
    for note in preparation.notes:
        print(note)
    days = " to ".join(f"{datetime.fromtimestamp(counts[key], UTC):%Y-%m-%d}" for key in ("first_s", "last_s"))
    print(
        f"{prepared.name}: {counts['events']:,} ratings of {counts['items']:,} items by {counts['users']:,} users, {days}"
    )
    if "md5" in prepared.source:
        print(f"checksum: MD5 {prepared.source['md5']}, as published")
    files = ", ".join([*prepared.files, RECORD])
    print(f"{'wrote' if preparation.is_new else 'nothing to do, already there:'} {files} in {preparation.directory}")
    print(f"next: paceline train sasrec-{prepared.name} data.path={shlex.quote(str(preparation.interactions))}")
