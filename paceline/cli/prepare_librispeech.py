"""`paceline prepare librispeech`: recordings become mono FLAC with a manifest; says what was cut, what was left out, and what to type next."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.arguments import Debug
from paceline.cli.progress import showing_progress
from paceline.errors import DataError, Interrupted
from paceline.recipes.csa.data_config import RATE
from paceline.recipes.csa.manifest import Entry
from paceline.recipes.csa.prepare import Preparation, prepare
from paceline.recipes.csa.prepare_errors import ERRORS
from paceline.recipes.csa.prepare_request import Request

_SHORT_S = 0.5
_SHOWN_FAULTS = 5


def command(
    source: Annotated[
        Path,
        typer.Option("--input", metavar="DIR", help="The folder with the splits: SPLIT/SPEAKER/CHAPTER/*.flac, *.wav."),
    ],
    output: Annotated[Path, typer.Option("--output", "--out", metavar="DIR", help="Where to write.")],
    rate: Annotated[int, typer.Option("--rate", metavar="HZ", help="Samples per second.")] = 16000,
    trim: Annotated[bool, typer.Option("--trim", help="Cut off silence at both ends.")] = False,
    top_db: Annotated[
        float | None,
        typer.Option("--top-db", metavar="DB", help="With --trim: silence is so much below the loudest moment; 60."),
    ] = None,
    manifest: Annotated[
        Path | None, typer.Option("--manifest", metavar="FILE", help="Its name, in --output; manifest.tsv.")
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", metavar="N", help="Processes; one for each core.")] = None,
    debug: Debug = False,
) -> None:
    """LibriSpeech, or any tree laid out like it, of any rate and number of channels, as mono FLAC with a manifest.

    Example: paceline prepare librispeech --input LibriSpeech --output data/speech --trim
    """
    if top_db is not None and not trim:
        print(f"--top-db {top_db:g} has no effect: without --trim nothing is cut")
    request = Request(source, output, rate, trim, 60.0 if top_db is None else top_db, manifest, workers)
    try:
        with showing_progress() as report:
            preparation = prepare(request, report)
    except KeyboardInterrupt:
        raise Interrupted("interrupted", "", "type the same again: it goes on where it stopped") from None
    _print(preparation)
    _report_faults(preparation)


def _print(preparation: Preparation) -> None:
    manifest = preparation.manifest
    for note in preparation.notes:
        print(note)
    splits: dict[str, list[Entry]] = {}
    for entry in manifest.entries:
        splits.setdefault(entry.split, []).append(entry)
    for split, entries in sorted(splits.items()):
        seconds = sum(entry.samples for entry in entries) / manifest.rate
        speakers = len({entry.speaker for entry in entries})
        print(f"{split}: {len(entries):,} utterances by {speakers:,} speakers, {_duration(seconds)}")
    if manifest.is_trimmed:
        cut = [entry.cut for entry in manifest.entries if entry.cut]
        share = manifest.cut_seconds / (manifest.seconds + manifest.cut_seconds)
        longest = max(cut, default=0) / manifest.rate
        print(
            f"cut: {_duration(manifest.cut_seconds)} ({share:.1%}) of silence at the ends of {len(cut):,} utterances, at the most {longest:.2f} s"
        )
    short = [entry.id for entry in manifest.entries if entry.samples < _SHORT_S * manifest.rate]
    if short:
        print(f"short: {len(short):,} utterances of less than {_SHORT_S:g} s, kept, such as {short[0]}")
    num_kept = len(manifest.entries) - preparation.num_made
    did = f"wrote and verified {preparation.num_made:,} files" if preparation.num_made else "nothing to do"
    kept = f", verified {num_kept:,} that were there" if num_kept else ""
    print(f"{did}{kept}: {preparation.manifest_path}")
    if manifest.rate != RATE:
        print(f"next: a program of your own: paceline train csa listens at {RATE} samples per second")
        return
    print(f"next: paceline train csa data.source=manifest data.manifest={shlex.quote(str(preparation.manifest_path))}")


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} h" if seconds >= 3600 else f"{seconds:,.1f} s"


def _report_faults(preparation: Preparation) -> None:
    """The rest is there and can be trained on, but whoever asked should know: the exit code says so, too."""
    faults = preparation.faults
    if faults:
        shown = "".join(f"\n  {fault.path}: {fault.reason}" for fault in faults[:_SHOWN_FAULTS])
        more = f"\n  and {len(faults) - _SHOWN_FAULTS:,} more" if len(faults) > _SHOWN_FAULTS else ""
        what = f"{len(faults):,} were left out, the other {len(preparation.manifest.entries):,} are ready:{shown}{more}"
        do = "repair them and type the same again: only they are made; or go on without them"
        raise DataError(what, str(preparation.manifest_path.parent / ERRORS), do)
