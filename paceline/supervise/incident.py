"""An incident: one directory that says what happened, who did it, what everybody else was doing, and what was done about it.

    RUN/incidents/0001-stall-rank3/   report.json  report.md  beats.jsonl  stacks/rank_00000.txt …

Written when something critical is noticed, and again as more becomes known; every file is replaced as a whole. What ends and comes back
goes on in the same directory, as it is this time, and is counted. Where the run's disk is full, it goes to the temporary directory: what is
known must not be lost with the room for it.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline.diagnose.finding import Finding
from paceline.diagnose.sight import Sight
from paceline.diagnose.stacks import Cluster, cluster_stacks
from paceline.files import finite, read_last_records, write_json, write_text
from paceline.supervise.incident_page import render_page
from paceline.supervise.stacks import Stacks
from paceline.telemetry.layout import RunLayout

VERSION = 1
_BEATS = 20


@dataclass
class Incident:
    """One critical finding, from its first notice to its last end."""

    layout: RunLayout
    attempt: int
    finding: Finding
    sight: Sight
    policy: str
    others: Sequence[Finding] = ()
    noticed: float = field(default_factory=time.time)
    action: str = "none"
    """none, asked (all ranks to stop at one step), killed, restarted"""
    ended: float | None = None
    """when it no longer held, or its ranks had gone"""
    times: int = 1
    """how often it was noticed: it may end, and come back"""
    returned: float | None = None
    """when it was noticed the last time, if that is not the first one"""
    is_told: bool = False
    """of this time"""
    host_index: int = 0
    """of the supervisor that opened it: each host of a run has one"""
    directory: Path = field(init=False)
    stacks: Stacks | None = None
    clusters: Sequence[Cluster] = ()
    kept: Mapping[str, Any] = field(default_factory=dict)
    """of one that an earlier supervisor opened: what it wrote, and stays"""

    def __post_init__(self) -> None:
        # Until it is opened, and where there is room for it nowhere: a name that does not exist, never the working directory.
        self.directory = self.layout.incidents / f"0000-{_subject(self.finding)}"

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def place(self) -> str:
        """For people: relative to the run, where it lies in it."""
        if self.directory.is_relative_to(self.layout.root):
            return str(self.directory.relative_to(self.layout.root))
        return str(self.directory)

    def open(self) -> None:
        """Makes the directory, unless it has one, and writes what is known already."""
        try:
            if not self.directory.is_dir():
                self.directory = _new_directory(self.layout.incidents, self.finding)
            self.write()
            self._write_beats()
        except OSError:
            spare = Path(tempfile.gettempdir()) / f"paceline-incidents-{self.layout.root.name}"
            self.directory = _new_directory(spare, self.finding)
            self.write()

    def reopen(self, finding: Finding, sight: Sight, others: Sequence[Finding]) -> None:
        """It has come back: what is written from here on is how it is this time."""
        self.finding, self.sight, self.others = finding, sight, others
        self.stacks, self.clusters, self.kept = None, (), {}
        self.times, self.returned, self.ended = self.times + 1, sight.time, None
        self.is_told = False

    def add_stacks(self, finding: Finding, stacks: Stacks, clusters: Sequence[Cluster]) -> None:
        """With the finding as it reads with them: they may name a rank where nothing did before, and so does the directory then, unless
        it was told by its name already."""
        before, self.finding, self.stacks, self.clusters = self.finding, finding, stacks, clusters
        if finding.rank != before.rank and self.times == 1:
            name = f"{self.name[:4]}-{_subject(finding)}"
            self.directory = self.directory.rename(self.directory.with_name(name))
        stacks.write(self.directory / "stacks")

    def take_in_stacks(self) -> bool:
        """Groups anew with what the supervisors of other hosts have added; whether there was anything. The finding stays as it was told."""
        if self.stacks is None or not self.stacks.read_far(self.directory / "stacks"):
            return False
        self.clusters = cluster_stacks(self.stacks.texts)
        return True

    def write(self) -> None:
        record = self.to_record()
        write_json(self.directory / "report.json", finite(record))
        write_text(self.directory / "report.md", render_page(record, self.layout.root, self.place))

    def to_record(self) -> dict[str, Any]:
        stacks = self.stacks
        return {
            "v": VERSION,
            "id": self.name.partition("-")[0],
            "attempt": self.attempt,
            "host_index": self.host_index,
            "noticed": self.noticed,
            "times": self.times,
            "returned": self.returned,
            "happened": self.finding.since,
            "finding": self.finding.to_record(),
            "others": [other.to_record() for other in self.others],
            "ranks": describe_ranks(self.sight),
            "stacks": {
                "taken_s": round(stacks.taken_s, 3) if stacks is not None else None,
                "clusters": [asdict(cluster) for cluster in self.clusters],
                "missing": {str(rank): why for rank, why in stacks.missing.items()} if stacks is not None else {},
            },
            "policy": self.policy,
            "action": self.action,
            "ended": self.ended,
            **self.kept,
        }

    def _write_beats(self) -> None:
        """The last heartbeats of every rank, torn lines left out."""
        lines = []
        for rank in range(self.sight.world_size):
            beats = [b for b in read_last_records(self.layout.heartbeat(rank)) if b.get("attempt") == self.attempt]
            lines += [json.dumps(beat, separators=(",", ":")) for beat in beats[-_BEATS:]]
        write_text(self.directory / "beats.jsonl", "".join(f"{line}\n" for line in lines))


def describe_ranks(sight: Sight) -> list[dict[str, Any]]:
    """Every rank at that moment, as plain data."""
    described = []
    for each in sight.ranks:
        pulse, process, held_s = each.pulse, each.process, sight.held_s(each)
        described.append(
            {
                "rank": each.rank,
                "host": each.host,
                "pid": process.pid if process is not None else pulse.pid if pulse is not None else None,
                "step": pulse.step if pulse is not None else None,
                "phase": pulse.phase if pulse is not None else None,
                "for_s": round(held_s, 3) if held_s is not None else None,
                "state": process.state if process is not None else None,
                "exit_code": process.exit_code if process is not None else None,
                "cpu_s": process.cpu_s if process is not None else None,
                "memory_gib": process.memory_gib if process is not None else None,
                "enqueued": pulse.collectives_enqueued if pulse is not None else None,
                "completed": pulse.collectives_completed if pulse is not None else None,
                "waited_ms": pulse.waited_ms if pulse is not None else None,
            }
        )
    return described


def _new_directory(parent: Path, finding: Finding) -> Path:
    """`0003-stall-rank1`, with a number that nobody has yet; two supervisors of two hosts may look for one at once."""
    parent.mkdir(parents=True, exist_ok=True)
    taken = [int(path.name[:4]) for path in parent.iterdir() if path.name[:4].isdecimal()]
    number = max(taken, default=0) + 1
    while True:
        directory = parent / f"{number:04d}-{_subject(finding)}"
        if not list(parent.glob(f"{number:04d}-*")):
            try:
                directory.mkdir()
                return directory
            except FileExistsError:
                pass
        number += 1


def _subject(finding: Finding) -> str:
    return finding.kind + (f"-rank{finding.rank}" if finding.rank is not None else "")
