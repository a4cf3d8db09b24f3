"""The stacks of all ranks, taken while they hang: each is asked by a signal, and read by py-spy where it cannot answer.

    stacks = take_stacks(layout, watch.processes, world_size=4)
    stacks.texts[3]       -> "Thread 0x00007f… (most recent call first):\\n  File …"
    stacks.missing[1]     -> "stopped: it cannot answer; py-spy is not installed (…)"

It takes at most five seconds, mostly much less; nobody is signalled who has not offered to answer. Each rank by itself: what goes wrong with
one is said of it, and costs nobody else's.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from paceline.files import identify_file
from paceline.supervise.py_spy import read_stacks
from paceline.supervise.rank_process import HeldProcess
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.stack_file import REQUEST, catches, find_answerer

_ANSWER_S = 1.5
_LATEST_S = 2.0
"""after which nobody is read from outside any more: that takes a moment each, or a timeout"""
_POLL_S = 0.02
_QUIET_S = 0.1
_AT_ONCE = 8
_NO_STACK = "no stack: "


@dataclass
class Stacks:
    """What the ranks were doing."""

    texts: dict[int, str] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)
    """rank -> why there is no stack of it, or none in its file"""
    taken_s: float = 0.0
    """how long it took"""
    far: Collection[int] = ()
    """ranks of other hosts: their own supervisors write their files"""
    _seen: dict[int, tuple[int, ...] | None] = field(default_factory=dict, repr=False)
    """rank of another host -> which file of it is known"""

    def write(self, directory: Path) -> None:
        """One file per rank; where there is no stack, it says why."""
        directory.mkdir(parents=True, exist_ok=True)
        self._seen = {rank: identify_file(_file_of(directory, rank)) for rank in self.far}  # of an earlier time
        reasons = {rank: f"{_NO_STACK}{why}\n" for rank, why in self.missing.items() if rank not in self.far}
        for rank, text in (self.texts | reasons).items():
            try:
                _file_of(directory, rank).write_text(text, encoding="utf-8", errors="backslashreplace")
            except OSError as error:
                self.missing.setdefault(rank, f"it was taken, and cannot be written: {error}")

    def read_far(self, directory: Path) -> bool:
        """Takes in what supervisors of other hosts have written since; whether there was anything."""
        before = dict(self._seen)
        for rank in self.far:
            path = _file_of(directory, rank)
            version = identify_file(path)
            if version is None or version == self._seen.get(rank):
                continue
            with contextlib.suppress(OSError):
                text = path.read_text(encoding="utf-8", errors="replace")
                self._seen[rank] = version
                if text.startswith(_NO_STACK):
                    self.missing[rank] = text.removeprefix(_NO_STACK).strip()
                elif text:
                    self.texts[rank] = text
                    self.missing.pop(rank, None)
        return self._seen != before


def _file_of(directory: Path, rank: int) -> Path:
    return directory / f"rank_{rank:05d}.txt"


def take_stacks(
    layout: RunLayout,
    processes: Mapping[int, HeldProcess],
    world_size: int,
    far: Mapping[int, str | None] = MappingProxyType({}),
) -> Stacks:
    """Of every rank whose process is given; the others are said to be missing. `far`: rank -> its host, of those that are on another."""
    began = time.monotonic()
    stacks = Stacks(missing=dict.fromkeys(range(world_size), "no process of it is known on this host"), far=set(far))
    stacks.missing |= {
        rank: f"it is on {host or 'another host'}; of an incident the supervisor there adds its stack as stacks/rank_{rank:05d}.txt"
        for rank, host in far.items()
    }
    stacks.missing |= dict.fromkeys(processes, "")
    asked = {rank: _ask(layout.stacks(rank), process) for rank, process in processes.items()}
    for rank, text in _listen(layout, {rank: size for rank, size in asked.items() if isinstance(size, int)}).items():
        if isinstance(text, str):
            stacks.texts[rank] = text
            del stacks.missing[rank]
        else:
            asked[rank] = f"its answer cannot be read: {text}"
    silent = {rank: process for rank, process in processes.items() if rank not in stacks.texts}
    read_one = functools.partial(_read_from_outside, latest=began + _LATEST_S)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        read = dict(zip(silent, pool.map(read_one, silent.values()), strict=True))
    for rank, (text, why) in read.items():
        if text:
            stacks.texts[rank] = text
            del stacks.missing[rank]
        else:
            said = asked[rank]
            first = said if isinstance(said, str) else f"it did not answer in {_ANSWER_S:g} s"
            stacks.missing[rank] = f"{first}; {why}" if why else first
    stacks.taken_s = time.monotonic() - began
    return stacks


def _ask(path: Path, process: HeldProcess) -> int | str:
    """Signals a rank that answers; the size of its file before, or why it was not asked."""
    try:
        state = process.look().state
        if state in ("zombie", "gone"):
            return "it has ended"
        if state == "stopped":
            return "stopped: it cannot answer"
        # Both, because the file may be an older process's, and a handler need not be ours.
        if find_answerer(path) != process.pid or not catches(process.read("status")):
            return "it does not answer requests for its stacks"
        size = path.stat().st_size
        return size if process.signal(REQUEST) else "it has ended"
    except OSError as error:
        return f"it cannot be asked: {error}"


def _listen(layout: RunLayout, asked: Mapping[int, int]) -> dict[int, str | OSError]:
    """What the asked ranks have appended: an answer is over when nothing has been added for a moment."""
    deadline = time.monotonic() + _ANSWER_S
    sizes, changed, waiting = dict(asked), dict.fromkeys(asked, 0.0), set(asked)
    heard: dict[int, str | OSError] = {}
    while waiting and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        now = time.monotonic()
        for rank in tuple(waiting):
            try:
                size = layout.stacks(rank).stat().st_size
            except OSError as error:
                heard[rank] = error
                waiting.discard(rank)
                continue
            if size != sizes[rank]:
                sizes[rank], changed[rank] = size, now
            elif changed[rank] and now - changed[rank] >= _QUIET_S:
                waiting.discard(rank)
    for rank, before in asked.items():
        if sizes[rank] > before and rank not in heard:
            heard[rank] = _read_answer(layout.stacks(rank), before)
    return heard


def _read_answer(path: Path, begin: int) -> str | OSError:
    try:
        with open(path, "rb") as file:
            file.seek(begin)
            return file.read().decode("utf-8", "replace")
    except OSError as error:
        return error


def _read_from_outside(process: HeldProcess, latest: float) -> tuple[str, str]:
    try:
        state = process.look().state
        if state in ("zombie", "gone"):
            return "", ""
        if time.monotonic() > latest:
            return "", "py-spy was too slow with the ranks before"
        return read_stacks(process.pid, is_stopped=state == "stopped")
    except OSError as error:
        return "", f"it cannot be read from outside: {error}"
