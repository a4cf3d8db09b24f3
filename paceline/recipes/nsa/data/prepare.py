"""`paceline prepare fineweb`: from text to token shards, part by part; killed at any instant it goes on after its last part. No torch, no numpy.

data/fineweb/manifest.json              what there is, and from what; written after every part
data/fineweb/tokenizer.json             the tokenizer that made it (none for bytes)
data/fineweb/train-00000.tokens         the documents of part 0 that are trained on
data/fineweb/validation-00000.tokens    those that are held out
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from paceline.errors import OccupiedError
from paceline.files import write_text
from paceline.recipes.nsa.data.hub import find_hub_inputs
from paceline.recipes.nsa.data.inputs import Inputs, find_inputs
from paceline.recipes.nsa.data.manifest import COMPLETE, MANIFEST, TOKENIZER, Manifest, read_manifest, write_manifest
from paceline.recipes.nsa.data.parts import Parts
from paceline.recipes.nsa.data.request import ANOTHER, Request
from paceline.recipes.nsa.data.tokenizer import BYTES, Tokenizer, check_same, load_tokenizer
from paceline.recipes.prepared import RECORD, differences, taking
from paceline.recipes.progress import Progress, Report


@dataclass(frozen=True)
class Preparation:
    """What came of it."""

    directory: Path
    manifest: Manifest
    is_new: bool
    """False: everything was there already"""
    notes: list[str] = field(default_factory=list)


def prepare(request: Request, report: Report) -> Preparation:
    """Makes what is missing; nothing that is there and whole is made again."""
    tokenizer = load_tokenizer(request.tokenizer)
    with taking(request.out):
        found = _find_manifest(request.out)
        _sweep(request.out)
        inputs = _find_inputs(request, found, report)
        manifest = _begin(request, found, inputs, tokenizer)
        parts = Parts(request, inputs, tokenizer, manifest, report)
        was_complete = manifest.state == COMPLETE
        num_remade = parts.remake_damaged()
        if not was_complete:
            parts.go_on()
            parts.finish()
        notes = [*inputs.notes, *parts.notes]
        return Preparation(request.out, parts.manifest, not was_complete or num_remade > 0, notes)


def _find_manifest(out: Path) -> Manifest | None:
    """Of an earlier call; OccupiedError where something else lives there."""
    manifest = read_manifest(out)
    if manifest is None:
        foreign = [out / RECORD, *sorted(out.glob("*.tokens"))]
        taken = next((file for file in foreign if file.exists()), None)
        if taken is not None:
            raise OccupiedError("this directory holds other data", str(taken), ANOTHER)
    return manifest


def _sweep(out: Path) -> None:
    """What a killed preparation had not put in its place yet; nobody else writes here, for the directory is taken."""
    for pattern in (".*.tokens.part", f".{MANIFEST}.*", f".{TOKENIZER}.*"):
        for file in out.glob(pattern):
            file.unlink()


def _find_inputs(request: Request, found: Manifest | None, report: Report) -> Inputs:
    if request.given:
        return find_inputs(request.given, request.out, lambda done, total: report(Progress("reading", done, total)))
    revision = found.source.get("revision") if found is not None else None
    return find_hub_inputs(request.sample, revision)


def _begin(request: Request, found: Manifest | None, inputs: Inputs, tokenizer: Tokenizer) -> Manifest:
    """The manifest to go on with: the one that is there, if it is of the same making, or the first one."""
    if found is None:
        fresh = Manifest(tokenizer.identity, request.parameters(), inputs.known, inputs.source)
        _keep_tokenizer(request.out, tokenizer)
        write_manifest(request.out, fresh)
        return fresh
    do = f"give the --tokenizer that was given before (without one it is {BYTES}), or {ANOTHER}"
    check_same(tokenizer.identity, found.tokenizer, f"--tokenizer {request.tokenizer}", str(request.out), do)
    differ = differences(found.parameters, request.parameters())
    if differ:
        raise OccupiedError(f"this directory was prepared otherwise: {', '.join(differ)}", str(request.out), ANOTHER)
    before, now = [one.sha256 for one in found.inputs], [one.sha256 for one in inputs.known]
    if before != now:
        changed = [one.name for one in inputs.known if one.sha256 not in before]
        changed += [one.name for one in found.inputs if one.sha256 not in now]
        named = ", ".join(dict.fromkeys(changed)) or "their order"
        what = f"this directory was prepared from other data ({len(before)} files, now {len(now)}): {named[:200]}"
        raise OccupiedError(what, str(request.out), ANOTHER)
    _keep_tokenizer(request.out, tokenizer)
    return found


def _keep_tokenizer(out: Path, tokenizer: Tokenizer) -> None:
    """Beside the shards, so that they can be read where the original is not."""
    content = tokenizer.content()
    path = out / TOKENIZER
    if content is not None and not (path.is_file() and path.read_bytes() == content.encode()):
        write_text(path, content)
