"""`paceline prepare librispeech`: from a tree of recordings to mono FLAC of one rate, with a manifest; killed at any instant it goes on. No torch.

data/speech/manifest.tsv                                     what there is; a line is appended when its file is there
data/speech/errors.tsv                                       what was left out, and why
data/speech/test-other/367/130732/367-130732-0000.flac       an utterance, where it was in the input
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from paceline.errors import DataError, OccupiedError
from paceline.files import storage_errors, sync_file_system
from paceline.recipes.csa.audio_packages import import_audio
from paceline.recipes.csa.manifest import Manifest, read_manifest
from paceline.recipes.csa.manifest_journal import Journal
from paceline.recipes.csa.prepare_errors import ERRORS, Fault, write_errors
from paceline.recipes.csa.prepare_inputs import Inputs, find_inputs, find_manifests
from paceline.recipes.csa.prepare_request import Request, check_request
from paceline.recipes.prepared import taking
from paceline.recipes.progress import Report

_ANOTHER = "choose another place with --output DIR, or delete this one"


@dataclass(frozen=True)
class Preparation:
    """What came of it."""

    manifest_path: Path
    manifest: Manifest
    faults: list[Fault]
    notes: list[str]
    num_made: int
    """in this call; the others were there and were verified"""


def prepare(request: Request, report: Report) -> Preparation:
    """Makes what is missing; nothing that is there and whole is made again."""
    check_request(request)
    import_audio()
    from paceline.recipes.csa.prepare_crew import Crew  # with numpy, which a help text does without

    inputs = find_inputs(request.input, report)
    wanted, top_db, notes = _plan_trimming(request, inputs)
    with taking(request.output):
        found = _find_manifest(request, wanted, inputs)
        if found is None or not found.is_complete:
            _sweep(request.output)
        crew = Crew(request, top_db, {source.id: source for source in inputs.sources}, report)
        kept, notes_kept = crew.verify(found)
        journal = Journal(request.manifest_path, replace(wanted, entries=list(kept)))
        if found is None or len(kept) < len(found.entries):
            journal.begin()
        faults = [*inputs.faults, *crew.make_missing(journal)]
        with storage_errors(request.output):
            write_errors(request.output / ERRORS, faults)
            if journal.has_begun or found is None or not found.is_complete:
                sync_file_system(request.output)
                journal.finish()
        num_made = len(journal.manifest.entries) - len(kept)
        manifest = replace(journal.manifest, entries=sorted(journal.manifest.entries, key=lambda entry: entry.id))
    if not manifest.entries:
        what = f"nothing could be prepared: {len(faults):,} faults, such as {faults[0].path}: {faults[0].reason}"
        raise DataError(what, str(request.output / ERRORS), "check --input, and type the same again")
    return Preparation(request.manifest_path, manifest, faults, [*inputs.notes, *notes, *notes_kept], num_made)


def _plan_trimming(request: Request, inputs: Inputs) -> tuple[Manifest, float | None, list[str]]:
    """What the manifest will say, what to trim by now, and what to tell people. What was trimmed once is never trimmed again."""
    before = inputs.prepared
    if before is None or not before.is_trimmed:
        top_db = request.top_db if request.trim else None
        return Manifest([], request.rate, request.trim, top_db, is_complete=False), top_db, []
    if request.trim and before.top_db != request.top_db:
        what = f"this input is trimmed already, at {before.top_db:g} dB, and --top-db {request.top_db:g} was asked for"
        do = "give the recordings that it was made from as --input, or leave --trim out"
        raise DataError(what, str(request.input), do)
    note = f"the input is trimmed already (at {before.top_db:g} dB): its ends are left as they are"
    return Manifest([], request.rate, True, before.top_db, is_complete=False), None, [note]


def _find_manifest(request: Request, wanted: Manifest, inputs: Inputs) -> Manifest | None:
    """Of an earlier call; OccupiedError where something else lives there."""
    path = request.manifest_path
    others = [other for other in find_manifests(request.output) if other.name != path.name]
    if others:
        what = f"the manifest of this directory is {others[0].name}"
        raise OccupiedError(what, str(request.output), f"--manifest {others[0]}, or {_ANOTHER}")
    if not path.exists():
        foreign = [child for child in request.output.iterdir() if not child.name.startswith(".")]
        if foreign:
            raise OccupiedError("this directory holds something else", str(min(foreign)), _ANOTHER)
        return None
    found = read_manifest(path)
    said = (("--rate", found.rate, wanted.rate), ("--trim", _trimming(found), _trimming(wanted)))
    differ = [f"{flag} was {before} and is {now}" for flag, before, now in said if before != now]
    if differ:
        raise OccupiedError(f"this directory was prepared otherwise: {', '.join(differ)}", str(path), _ANOTHER)
    gone = [entry.id for entry in found.entries if entry.id not in inputs.ids]
    if gone:
        what = f"this directory was prepared from other data: {len(gone):,} of its {len(found.entries):,} utterances are not in"
        raise OccupiedError(f"{what} --input {request.input}, such as {gone[0]}", str(path), _ANOTHER)
    return found


def _trimming(manifest: Manifest) -> str:
    return f"at {manifest.top_db:g} dB" if manifest.top_db is not None else "off"


def _sweep(output: Path) -> None:
    """What a killed preparation had not put in its place yet; nobody else writes here, for the directory is taken."""
    for pattern in ("*/*/*/.*.flac.*", ".*.tsv.*"):
        for file in output.glob(pattern):
            file.unlink()
