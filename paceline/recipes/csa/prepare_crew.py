"""The utterances of a preparation, over all its processes: verified where they are there, made where they are not. No torch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from paceline.files import storage_errors
from paceline.recipes.csa.manifest import Entry, Manifest
from paceline.recipes.csa.manifest_journal import Journal
from paceline.recipes.csa.prepare_errors import Fault
from paceline.recipes.csa.prepare_inputs import Source
from paceline.recipes.csa.prepare_pool import work_through
from paceline.recipes.csa.prepare_request import Request
from paceline.recipes.csa.prepare_work import Outcome, Task, check, make
from paceline.recipes.progress import Progress, Report

_DIED = "the process that decoded it died: it crashes the decoder, or there is too little memory for it"


class Crew:
    """All processes of one preparation, and the utterances that they work at."""

    def __init__(self, request: Request, top_db: float | None, sources: dict[str, Source], report: Report) -> None:
        self._request, self._top_db, self._sources, self._report = request, top_db, sources, report

    def verify(self, found: Manifest | None) -> tuple[list[Entry], list[str]]:
        """The utterances that are there as they should be, each decoded; and what to say about the others."""
        entries = {entry.id: entry for entry in found.entries} if found is not None else {}
        claims = [entry for entry in entries.values() if self._is_claimed(entry)]
        tasks = [
            replace(self._task(entry.id), samples=entry.samples, checksum=entry.checksum, digest=entry.source)
            for entry in claims
        ]
        kept, faults = [], list[str]()
        for task, outcome in self._work_through("verifying", check, tasks):
            if outcome.fault:
                faults.append(f"{task.id}: {outcome.fault}")
            else:
                kept.append(entries[task.id])
        notes = [f"made again: {len(faults):,} utterances, such as {min(faults)}"] if faults else []
        return kept, notes

    def _is_claimed(self, entry: Entry) -> bool:
        """Whether the input still says of it what the manifest says."""
        source = self._sources.get(entry.id)
        if source is None:
            return False
        now = (source.split, source.speaker, self._place(source), source.transcript)
        return now == (entry.split, entry.speaker, entry.path, entry.transcript)

    def make_missing(self, journal: Journal) -> list[Fault]:
        """Every utterance that the journal does not know yet; a line for each that could be made, a fault for each that could not."""
        there = {entry.id for entry in journal.manifest.entries}
        tasks = [self._task(ident) for ident in self._sources if ident not in there]
        faults = []
        with storage_errors(self._request.output):
            for task, outcome in self._work_through("preparing", make, tasks):
                source = self._sources[task.id]
                if outcome.fault:
                    faults.append(Fault(os.path.relpath(task.source, self._request.input), outcome.fault))
                else:
                    journal.add(_entry(source, task, outcome))
        return faults

    def _work_through(
        self, phase: str, do: Callable[[Task], Outcome], tasks: Sequence[Task]
    ) -> Iterator[tuple[Task, Outcome]]:
        with contextlib.closing(work_through(do, tasks, self._request.num_workers)) as results:
            for number, (task, outcome) in enumerate(results, 1):
                yield task, outcome if outcome is not None else Outcome(_DIED)
                self._report(Progress(phase, number, len(tasks), number))

    def _task(self, ident: str) -> Task:
        source = self._sources[ident]
        return Task(ident, str(source.path), str(self._place(source)), self._request.rate, self._top_db)

    def _place(self, source: Source) -> Path:
        return self._request.output / source.split / source.speaker / source.chapter / f"{source.id}.flac"


def _entry(source: Source, task: Task, outcome: Outcome) -> Entry:
    said = (source.transcript, outcome.checksum, outcome.cut, outcome.digest)
    return Entry(source.id, source.split, source.speaker, Path(task.output), outcome.samples, *said)
