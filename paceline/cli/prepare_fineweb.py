"""`paceline prepare fineweb`: text becomes token shards; says what came of it and what to type next."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.arguments import Debug
from paceline.cli.progress import showing_progress
from paceline.config.nearest import nearest
from paceline.errors import Interrupted, UsageError
from paceline.recipes.nsa.data.hub import SAMPLES
from paceline.recipes.nsa.data.manifest import MANIFEST
from paceline.recipes.nsa.data.prepare import Preparation, prepare
from paceline.recipes.nsa.data.request import Request


def command(
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--from", metavar="PATH", help="A parquet, JSONL or text file, or a directory with some; may be repeated."
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where to write.")] = Path("data/fineweb"),
    tokenizer: Annotated[
        str,
        typer.Option(
            "--tokenizer",
            metavar="NAME|FILE",
            help="bytes, a tokenizer.json, or a directory with vocab.json, merges.txt.",
        ),
    ] = "bytes",
    field: Annotated[
        str, typer.Option("--field", metavar="NAME", help="JSONL, parquet: what holds the text.")
    ] = "text",
    validation_share: Annotated[
        float, typer.Option("--validation-share", metavar="X", help="Share of documents that are held out.")
    ] = 0.01,
    max_tokens: Annotated[
        float | None, typer.Option("--max-tokens", metavar="N", help="Stop after the document that reaches it: 1e9.")
    ] = None,
    shard_tokens: Annotated[
        float, typer.Option("--shard-tokens", metavar="N", help="Tokens of a part; a kill costs at most one.")
    ] = 2**24,
    sample: Annotated[
        str | None,
        typer.Option("--sample", metavar="|".join(SAMPLES), help="Without --from: how much of FineWeb-Edu (10BT)."),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Pass over documents that cannot be read, and count them.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Text from files, or FineWeb-Edu from the network, as token shards with a training and a validation side.

    Example: paceline prepare fineweb --from texts --tokenizer gpt2/tokenizer.json
    """
    if sample is not None and sample not in SAMPLES:
        what = f"there is no sample {sample!r} (there are: {', '.join(SAMPLES)})"
        raise UsageError(what, "command line", f"--sample {nearest(sample, SAMPLES) or '10BT'}")
    if sample is not None and given:
        what = "--sample is of FineWeb-Edu, and --from names files of your own"
        raise UsageError(what, "command line", "leave one of them out")
    if "" in (given or ()):
        # As a path it would be the directory that this was typed in.
        raise UsageError("--from names nothing", "command line", "name a file or a directory: is a variable empty?")
    if not 0 < validation_share < 1:
        what = f"--validation-share {validation_share:g} is no share between 0 and 1, both excluded"
        raise UsageError(what, "command line", "such as --validation-share 0.01")
    request = Request(
        tuple(map(Path, given or ())),
        out,
        sample or "10BT",
        tokenizer,
        field,
        validation_share,
        _count("--shard-tokens", shard_tokens),
        None if max_tokens is None else _count("--max-tokens", max_tokens),
        skip_bad,
    )
    try:
        with showing_progress() as report:
            preparation = prepare(request, report)
    except KeyboardInterrupt:
        raise Interrupted("interrupted", "", "type the same again: it goes on where it stopped") from None
    _print(preparation)


def _count(flag: str, value: float) -> int:
    """1e9 is easier to type than its zeros."""
    if not (1 <= value < 1e18 and value == int(value)):
        raise UsageError(f"{flag} {value:g} is no number of tokens", "command line", f"such as {flag} 1e9")
    return int(value)


def _print(preparation: Preparation) -> None:
    manifest, counts = preparation.manifest, preparation.manifest.counts()
    for note in preparation.notes:
        print(note)
    for split in ("train", "validation"):
        print(f"{split}: {counts[f'{split}_documents']:,} documents, {counts[f'{split}_tokens']:,} tokens")
    if counts["empty"] or counts["bad"]:
        print(f"left out: {counts['empty']:,} empty documents, {counts['bad']:,} that could not be read")
    print(f"tokenizer: {manifest.tokenizer.fingerprint}, vocabulary {manifest.tokenizer.vocabulary:,}")
    did = "wrote and verified" if preparation.is_new else "nothing to do, verified:"
    num_files = sum(len(part.shards) for part in manifest.parts)
    print(f"{did} {num_files} shards and {MANIFEST} in {preparation.directory}")
    print(f"next: paceline train nsa data.source=shards data.path={shlex.quote(str(preparation.directory))}")
