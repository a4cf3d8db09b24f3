"""Makes the parts of a preparation one after another, and again those that were damaged. No torch, no numpy.

A part takes documents until it has `--shard-tokens`, from the place where the part before it ended. So what is in it follows from the
inputs and the settings alone, and a damaged one can be made again without its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

from paceline.errors import DataError
from paceline.files import storage_errors
from paceline.recipes.nsa.data.encoding import Encoded, encode_documents
from paceline.recipes.nsa.data.inputs import Inputs
from paceline.recipes.nsa.data.manifest import COMPLETE, Manifest, Part, Place, Shard, check_shard, write_manifest
from paceline.recipes.nsa.data.request import ANOTHER, Request
from paceline.recipes.nsa.data.shards import ShardWriter
from paceline.recipes.nsa.data.split import SPLITS
from paceline.recipes.nsa.data.tokenizer import Tokenizer
from paceline.recipes.progress import Progress, Report

_NOTED_FAULTS = 5


class Parts:
    """The parts of one directory, under way: made, checked, made again."""

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
                raise DataError(what, str(self._request.out), ANOTHER)
            self.notes.append(f"made again: {fault}")
        return len(faults)

    def go_on(self) -> None:
        """Part after part, to the end of the inputs or to the limit."""
        encoded = self._encode_from(self.manifest.end)
        while (part := self._make_part(len(self.manifest.parts), encoded)) is not None:
            self.manifest = self.manifest.with_part(part)
            with storage_errors(self._request.out):
                write_manifest(self._request.out, self.manifest)

    def finish(self) -> None:
        """Reads everything back, and says that it is complete."""
        damaged = self._find_damaged()
        if damaged:
            what = f"what was written does not read back: {'; '.join(damaged.values())}"
            raise DataError(what, str(self._request.out), "check the disk, then type the same again")
        counts = self.manifest.counts()
        if not counts["documents"]:
            what = f"there is no document with text in it: {counts['empty']:,} empty, {counts['bad']:,} that could not be read"
            do = "give files with text in them, and another --out DIR (or delete this one)"
            raise DataError(what, self._inputs.source.get("from", str(self._request.out)), do)
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
            self._report(Progress("tokenizing", tokens, self._request.max_tokens, tokens, "tokens"))
            return
        known = self._inputs.known
        # Rows of a parquet file are no bytes: it counts when it is read to its end.
        inside = place.offset if self._inputs.origins[place.input].kind != "parquet" else 0
        done = sum(one.bytes for one in known[: place.input]) + inside
        self._report(Progress("tokenizing", done, self._inputs.total_bytes, tokens, "tokens"))


def _name(split: str, index: int) -> str:
    return f"{split}-{index:05}.tokens"


def _shard(name: str, writer: ShardWriter) -> Shard:
    header = writer.header
    assert header is not None
    return Shard(name, header.file_bytes, header.payload.hex(), header.tokens, header.documents)
