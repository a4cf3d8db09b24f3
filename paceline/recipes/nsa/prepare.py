"""`paceline prepare fineweb`: from text to token shards, part by part; killed at any instant it goes on after its last part. No torch, no numpy.

data/fineweb/manifest.json              what there is, and from what; written after every part
data/fineweb/tokenizer.json             the tokenizer that made it (none for bytes)
data/fineweb/train-00000.tokens         the documents of part 0 that are trained on
data/fineweb/validation-00000.tokens    those that are held out
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.errors import DataError, OccupiedError
from paceline.files import storage_errors, write_text
from paceline.recipes.nsa.encoding import Encoded, encode_documents
from paceline.recipes.nsa.hub import find_hub_inputs
from paceline.recipes.nsa.inputs import Inputs, find_inputs
from paceline.recipes.nsa.manifest import (
    COMPLETE,
    MANIFEST,
    TOKENIZER,
    Manifest,
    Part,
    Place,
    Shard,
    check_shard,
    read_manifest,
    write_manifest,
)
from paceline.recipes.nsa.shards import ShardWriter
from paceline.recipes.nsa.split import SPLITS
from paceline.recipes.nsa.tokenizer import BYTES, Tokenizer, check_same, load_tokenizer
from paceline.recipes.prepared import RECORD, taking

_NOTED_FAULTS = 5
_ANOTHER = "choose another place with --out DIR, or delete this one"


@dataclass(frozen=True)
class Request:
    """What was typed."""

    given: tuple[Path, ...] = ()
    """files and directories; none: the hub"""
    out: Path = Path("data/fineweb")
    sample: str = "10BT"
    """of the hub"""
    tokenizer: str = BYTES
    field: str = "text"
    validation_share: float = 0.01
    shard_tokens: int = 2**24
    max_tokens: int | None = None
    skip_bad: bool = False

    def parameters(self) -> dict[str, Any]:
        """What decides which tokens come out, beside the inputs and the tokenizer."""
        names = ("field", "validation_share", "shard_tokens", "max_tokens", "skip_bad")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Progress:
    """How far it is."""

    phase: str
    """reading, tokenizing, verifying"""
    done: int
    total: int
    """bytes of the inputs, tokens where those are limited, or shards"""
    tokens: int = 0


Report = Callable[[Progress], None]


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
        work = _Work(request, inputs, tokenizer, manifest, report)
        was_complete = manifest.state == COMPLETE
        num_remade = work.remake_damaged()
        if not was_complete:
            work.go_on()
            work.finish()
        notes = [*inputs.notes, *work.notes]
        return Preparation(request.out, work.manifest, not was_complete or num_remade > 0, notes)


def _find_manifest(out: Path) -> Manifest | None:
    """Of an earlier call; OccupiedError where something else lives there."""
    manifest = read_manifest(out)
    if manifest is None:
        foreign = [out / RECORD, *sorted(out.glob("*.tokens"))]
        taken = next((file for file in foreign if file.exists()), None)
        if taken is not None:
            raise OccupiedError("this directory holds other data", str(taken), _ANOTHER)
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
    check_same(tokenizer.identity, found.tokenizer, f"--tokenizer {request.tokenizer}", str(request.out))
    asked = request.parameters()
    differ = [
        f"--{name.replace('_', '-')} was {found.parameters.get(name)} and is {value}"
        for name, value in asked.items()
        if found.parameters.get(name) != value
    ]
    if differ:
        raise OccupiedError(f"this directory was prepared otherwise: {', '.join(differ)}", str(request.out), _ANOTHER)
    before, now = [one.sha256 for one in found.inputs], [one.sha256 for one in inputs.known]
    if before != now:
        changed = [one.name for one in inputs.known if one.sha256 not in before]
        changed += [one.name for one in found.inputs if one.sha256 not in now]
        named = ", ".join(dict.fromkeys(changed)) or "their order"
        what = f"this directory was prepared from other data ({len(before)} files, now {len(now)}): {named[:200]}"
        raise OccupiedError(what, str(request.out), _ANOTHER)
    _keep_tokenizer(request.out, tokenizer)
    return found


def _keep_tokenizer(out: Path, tokenizer: Tokenizer) -> None:
    """Beside the shards, so that they can be read where the original is not."""
    content = tokenizer.content()
    path = out / TOKENIZER
    if content is not None and not (path.is_file() and path.read_bytes() == content.encode()):
        write_text(path, content)


class _Work:
    """A preparation under way."""

    def __init__(
        self, request: Request, inputs: Inputs, tokenizer: Tokenizer, manifest: Manifest, report: Report
    ) -> None:
        self._request = request
        self._inputs = inputs
        self._tokenizer = tokenizer
        self._report = report
        self.manifest = manifest
        self.notes: list[str] = []

    def remake_damaged(self) -> int:
        """Checks every part that is said to be there, and makes again those that are not as they were; their number."""
        faults = self._find_damaged()
        for index, fault in faults.items():
            before = self.manifest.parts[index]
            made = self._make_part(index, self._encode_from(before.start))
            if made is None or made.shards != before.shards:
                what = f"part {index} is damaged ({fault}), and what is made of the same inputs now is not the same"
                raise DataError(what, str(self._request.out), _ANOTHER)
            self.notes.append(f"made again: {fault}")
        return len(faults)

    def go_on(self) -> None:
        """Part after part, to the end of the inputs or to the limit."""
        encoded = self._encode_from(self.manifest.end)
        while (part := self._make_part(len(self.manifest.parts), encoded)) is not None:
            self.manifest = self.manifest.with_part(len(self.manifest.parts), part)
            with storage_errors(self._request.out):
                write_manifest(self._request.out, self.manifest)

    def finish(self) -> None:
        """Reads everything back, and says that it is complete."""
        damaged = self._find_damaged()
        if damaged:
            what = f"what was written does not read back: {'; '.join(damaged.values())}"
            raise DataError(what, str(self._request.out), "check the disk, then type the same again")
        counts = self.manifest.counts()
        for split in SPLITS:
            if not counts.get(f"{split}_documents"):
                what = (
                    f"none of the {counts['documents']:,} documents is for {split} "
                    f"(--validation-share {self._request.validation_share:g}, by a hash of their text)"
                )
                do = "give more text, or another --validation-share, such as 0.1, and another --out DIR (or delete this one)"
                raise DataError(what, str(self._request.out), do)
        self.manifest = replace(self.manifest, state=COMPLETE)
        with storage_errors(self._request.out):
            write_manifest(self._request.out, self.manifest)

    def _find_damaged(self) -> dict[int, str]:
        """Part -> what is wrong with it; every byte is read."""
        found: dict[int, str] = {}
        for index, part in enumerate(self.manifest.parts):
            self._report(Progress("verifying", index, len(self.manifest.parts)))
            for shard in part.shards.values():
                try:
                    check_shard(self._request.out, shard, self._tokenizer.identity, is_thorough=True)
                except DataError as error:
                    found[index] = f"{shard.file}: {error.problems[0].what}"
        return found

    def _encode_from(self, start: Place) -> Iterator[Encoded]:
        request = self._request
        return encode_documents(self._inputs, start, self._tokenizer, request.field, request.validation_share)

    def _make_part(self, index: int, encoded: Iterator[Encoded]) -> Part | None:
        """One part from the documents that come; None where there are none left, or where the limit is reached."""
        before = self.manifest.parts[:index]
        start = before[-1].end if before else Place()
        num_before = sum(part.counts["tokens"] for part in before)
        limit, most = self._request.max_tokens, self._request.shard_tokens
        if limit is not None:
            most = min(most, limit - num_before)
        counts = dict.fromkeys(("documents", "tokens", "empty", "bad"), 0)
        end = start
        writers: dict[str, ShardWriter] = {}
        with storage_errors(self._request.out), ExitStack() as stack:
            while counts["tokens"] < most and (document := next(encoded, None)) is not None:
                end = document.after
                if document.tokens is None:
                    self._pass_over(document, counts)
                    continue
                if document.split not in writers:
                    path = self._request.out / _name(document.split, index)
                    writers[document.split] = stack.enter_context(ShardWriter(path, self._tokenizer.identity))
                writers[document.split].add(document.tokens)
                counts["documents"] += 1
                counts["tokens"] += len(document.tokens)
                if not counts["documents"] % 64:
                    self._tell(end, num_before + counts["tokens"])
        if end == start:
            return None
        return Part(start, end, counts, {split: _shard(_name(split, index), one) for split, one in writers.items()})

    def _pass_over(self, document: Encoded, counts: dict[str, int]) -> None:
        if not document.fault:
            counts["empty"] += 1
            return
        if not self._request.skip_bad:
            raise DataError(document.fault, document.where, "correct or remove it, or pass over such ones: --skip-bad")
        counts["bad"] += 1
        if len(self.notes) < _NOTED_FAULTS:
            self.notes.append(f"passed over: {document.where}: {document.fault}")

    def _tell(self, place: Place, tokens: int) -> None:
        if self._request.max_tokens is not None:
            self._report(Progress("tokenizing", tokens, self._request.max_tokens, tokens))
            return
        known = self._inputs.known
        # Rows of a parquet file are no bytes: it counts when it is read to its end.
        inside = place.offset if self._inputs.origins[place.input].kind != "parquet" else 0
        done = sum(one.bytes for one in known[: place.input]) + inside
        self._report(Progress("tokenizing", done, self._inputs.total_bytes, tokens))


def _name(split: str, index: int) -> str:
    return f"{split}-{index:05}.tokens"


def _shard(name: str, writer: ShardWriter) -> Shard:
    header = writer.header
    assert header is not None
    return Shard(name, header.file_bytes, header.payload.hex(), header.tokens, header.documents)
