"""Stacks of all ranks, put together: 63 that wait at one line are one cluster, and the odd one stands out.

Reads what `faulthandler` writes on a signal, and what `py-spy dump` prints; only the main thread counts, where training happens.

    cluster_stacks({0: "Current thread 0x… (most recent call first):\n  File …", 1: "Thread 4711 (idle): …"})
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.diagnose.finding import Finding, Witness
from paceline.diagnose.standing import name_ranks

_FAULT_THREAD = re.compile(r"(?P<current>Current thread|Thread) (?P<id>0x[0-9a-fA-F]+).*\(most recent call first\):")
_FAULT_FRAME = re.compile(r'\s+File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.+)')
_SPY_THREAD = re.compile(r'Thread (?P<id>\d+|0x[0-9a-fA-F]+) \((?P<state>[^)]*)\)(?:: "(?P<name>.*)")?')
_SPY_FRAME = re.compile(r"\s+(?P<function>\S.*) \((?P<file>[^():]+)(?::(?P<line>\d+))?\)\s*$")
_THREAD_ROOTS = ("_bootstrap", "_bootstrap_inner")
_LIBRARIES = ("site-packages/", "dist-packages/", "lib/python", "<frozen", "torch/", ".so")
_WAITS = re.compile(
    r"(distributed_c10d|torch/distributed/|c10d)"
    r"|^(_engine_run_backward|finish|synchronize|monitored_barrier|barrier|all_reduce|all_gather|broadcast|gather|reduce_scatter\w*|wait_tensor) "
)


@dataclass(frozen=True)
class Frame:
    """One call."""

    function: str
    file: str
    line: int | None

    def __str__(self) -> str:
        at = f":{self.line}" if self.line is not None else ""
        return f"{self.function} ({shorten_path(self.file)}{at})"

    @property
    def is_library(self) -> bool:
        short = shorten_path(self.file)
        if short.startswith("paceline/"):
            return False
        # py-spy leaves out where a module was found: of Python's own, only the name is left.
        own = not self.file.startswith("/") and short.split("/")[0].removesuffix(".py") in sys.stdlib_module_names
        return own or any(mark in self.file for mark in _LIBRARIES)


@dataclass(frozen=True)
class Cluster:
    """Ranks whose main threads are in the same calls, the innermost first."""

    ranks: tuple[int, ...]
    frames: tuple[str, ...]
    """of its first rank; empty: no stack was got"""
    is_odd: bool
    waits: bool
    """the innermost call is a collective, or a backward, in which the ranks wait for each other"""
    place: str
    """the innermost call that is no library's"""


def cluster_stacks(texts: Mapping[int, str]) -> list[Cluster]:
    """Clusters of ranks, the odd one first, then the larger before the smaller."""
    groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
    stacks = {rank: parse_main_thread(text) for rank, text in texts.items()}
    for rank in sorted(stacks):
        groups.setdefault(_key(stacks[rank]), []).append(rank)
    clusters = [_build_cluster(tuple(ranks), stacks[ranks[0]]) for ranks in groups.values()]
    odd = _find_odd(clusters)
    clusters = [replace(cluster, is_odd=True) if cluster is odd else cluster for cluster in clusters]
    return sorted(clusters, key=lambda cluster: (not cluster.is_odd, -len(cluster.ranks), cluster.ranks))


def parse_main_thread(text: str) -> list[Frame]:
    """The main thread of the last dump in a text, innermost call first; empty where there is none."""
    threads = _parse_fault(text) or _parse_spy(text)
    mains = [thread for thread in threads if thread.frames and thread.is_main]
    if not mains:
        mains = [thread for thread in threads if thread.frames and not _is_helper(thread.frames)]
    if not mains:
        mains = [thread for thread in threads if thread.frames and thread.is_current]
    return mains[-1].frames if mains else []


def weigh_stacks(finding: Finding, clusters: Sequence[Cluster]) -> Finding:
    """The finding with what the stacks say: who is odd, and at which line.

    A rank that was named by its pulse stays named, unless it waits in a collective and exactly one other does not. Where nobody was named
    and all wait, the odd one waits in another collective than the others. One stack alone stands out from nothing, and of a rank that is
    stopped or dead the others' stacks say nothing: then they tell where it is, and are no witness.
    """
    odd = next((cluster for cluster in clusters if cluster.is_odd), None)
    own = next((cluster for cluster in clusters if finding.rank in cluster.ranks and cluster.place), None)
    num_stacks = sum(len(cluster.ranks) for cluster in clusters if cluster.frames)
    if num_stacks < 2 or (finding.kind != "stall" and (odd is None or finding.rank not in odd.ranks)):
        return replace(finding, what=f"{finding.what}; it is in {own.place}") if own is not None else finding
    if odd is None:
        said = "all ranks are in the same calls" if len(clusters) == 1 else "no rank's stack stands out"
        where = f"; rank {finding.rank} is in {own.place}" if own is not None else ""
        return replace(finding, witnesses=(*finding.witnesses, Witness("stacks", False, said + where)))
    said = f"{name_ranks(odd.ranks)} in {odd.place}, unlike the others"
    if finding.rank in odd.ranks:
        witness = Witness("stacks", True, said)
        return replace(finding, what=f"{finding.what}; it is in {odd.place}", witnesses=(*finding.witnesses, witness))
    accused = next((cluster for cluster in clusters if finding.rank in cluster.ranks), None)
    all_wait = odd.waits and all(cluster.waits for cluster in clusters if cluster.frames)
    is_better = len(odd.ranks) == 1 and (accused is None or (accused.waits and not odd.waits))
    if not is_better or finding.ranks:
        return replace(finding, witnesses=(*finding.witnesses, Witness("stacks", False, said)))
    before = tuple(replace(witness, agrees=False) for witness in finding.witnesses)
    return replace(
        finding,
        what=f"{finding.what}; by its stack rank {odd.ranks[0]} holds the others up: it is in {odd.place}",
        rank=odd.ranks[0],
        cause="collective" if all_wait else finding.cause,
        witnesses=(*before, Witness("stacks", True, said)),
    )


def shorten_path(file: str) -> str:
    """The end of a path that tells where it is: from the package on, or its last two parts."""
    for mark in ("site-packages/", "dist-packages/"):
        if mark in file:
            return file.split(mark)[-1]
    if not file.startswith("/"):  # py-spy has shortened it already
        return file
    if "/paceline/" in file:
        return "paceline/" + file.split("/paceline/")[-1]
    return "/".join(file.split("/")[-2:])


@dataclass
class _Thread:
    frames: list[Frame]
    is_main: bool
    is_current: bool


def _parse_fault(text: str) -> list[_Thread]:
    threads: list[_Thread] = []
    seen: set[str] = set()
    for line in text.splitlines():
        head = _FAULT_THREAD.search(line)
        if head is not None:
            if head["id"] in seen:  # another dump begins: the file is appended to
                threads, seen = [], set()
            seen.add(head["id"])
            threads.append(_Thread([], False, head["current"] != "Thread"))
        elif threads and (frame := _FAULT_FRAME.match(line)) is not None:
            threads[-1].frames.append(Frame(frame["function"], frame["file"], int(frame["line"])))
    return threads


def _parse_spy(text: str) -> list[_Thread]:
    threads: list[_Thread] = []
    for line in text.splitlines():
        if line.startswith("Process ") and threads:
            threads = []
        elif (head := _SPY_THREAD.match(line)) is not None:
            threads.append(_Thread([], head["name"] == "MainThread", "active" in head["state"]))
        elif threads and (frame := _SPY_FRAME.match(line)) is not None:
            number = int(frame["line"]) if frame["line"] else None
            threads[-1].frames.append(Frame(frame["function"], frame["file"], number))
    return threads


def _key(frames: Sequence[Frame]) -> tuple[tuple[str, str], ...]:
    """What ranks in one place have in common: no lines (they may poll in one loop), and names as both sources write them."""
    own = [frame for frame in frames if not frame.file.startswith("<frozen")]
    return tuple((each.function.rpartition(".")[2], each.file.rpartition("/")[2]) for each in own)


def _is_helper(frames: Sequence[Frame]) -> bool:
    """A thread that somebody started: its outermost call is `threading`'s."""
    return frames[-1].function.rpartition(".")[2] in _THREAD_ROOTS


def _build_cluster(ranks: tuple[int, ...], frames: Sequence[Frame]) -> Cluster:
    own = next((frame for frame in frames if not frame.is_library), frames[0] if frames else None)
    waits = bool(frames) and _WAITS.search(str(frames[0])) is not None
    return Cluster(ranks, tuple(map(str, frames)), False, waits, str(own) if own is not None else "")


def _find_odd(clusters: Sequence[Cluster]) -> Cluster | None:
    known = [cluster for cluster in clusters if cluster.frames]
    if len(known) < 2:
        return None
    alone = [cluster for cluster in known if not cluster.waits]
    if len(alone) == 1 and 2 * len(alone[0].ranks) <= sum(len(cluster.ranks) for cluster in known):
        return alone[0]
    ordered = sorted(known, key=lambda cluster: len(cluster.ranks))
    num_ranks = sum(len(cluster.ranks) for cluster in known)
    is_minority = len(ordered[0].ranks) < len(ordered[1].ranks) and 2 * len(ordered[-1].ranks) > num_ranks
    return ordered[0] if is_minority else None
