"""Who is there: the hosts of a run as its leader knows them, when there are enough to begin, and who sits where. Pure: it is told the time.

    roll = Roll(Count(1, 2), mine, timeout_s=300)
    roll.call(now); entry = roll.admit(hello); roll.confirm(entry.index)
    roll.decide(now)   -> "begin", "wait" or "late"
    roll.seat()        -> [Seat(index=0, node_rank=0, first_rank=0, …), Seat(index=1, node_rank=1, first_rank=2, …)]

The leader has index 0 and the first ranks, always: what only rank 0 writes is written on one host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.config.changes import find_changes, list_changes
from paceline.errors import PacelineError, RendezvousError
from paceline.launch.hosts.endpoint import Count
from paceline.launch.hosts.facts import HostFacts, compare
from paceline.launch.hosts.message import VERSION, Hello

LAST_CALL_S = 2.0
"""after the least number of hosts is there: for those who were started at the same time"""


@dataclass
class Entry:
    """One host that is connected, or the leader itself."""

    index: int
    hello: Hello
    is_ready: bool = False
    is_leaving: bool = False

    @property
    def name(self) -> str:
        return f"{self.hello.host} ({self.hello.address})"


@dataclass(frozen=True)
class Seat:
    """A host's place in one attempt."""

    index: int
    host: str
    address: str
    node_rank: int
    first_rank: int
    nproc: int

    @property
    def ranks(self) -> range:
        return range(self.first_rank, self.first_rank + self.nproc)

    def __str__(self) -> str:
        last = self.first_rank + self.nproc - 1
        ranks = f"rank {last}" if self.nproc == 1 else f"ranks {self.first_rank} to {last}"
        return f"host {self.host} ({self.address}) with {ranks}"


class Roll:
    """The list of hosts; the caller tells it who came and who went."""

    def __init__(self, count: Count, mine: Hello, timeout_s: float, last_call_s: float = LAST_CALL_S) -> None:
        self.count = count
        self._timeout_s = timeout_s
        self._last_call_s = last_call_s
        self._entries = {0: Entry(0, mine, is_ready=True)}
        self._known = {(mine.host, mine.address): 0}
        """a host that comes back gets the index that it had, if nobody else has it"""
        self._deadline: float | None = None
        self._enough_since: float | None = None

    def __getitem__(self, index: int) -> Entry:
        return self._entries[index]

    def __contains__(self, index: int) -> bool:
        return index in self._entries

    @property
    def present(self) -> list[Entry]:
        """Those that can take part in the next attempt, the leader first."""
        return [entry for _, entry in sorted(self._entries.items()) if entry.is_ready and not entry.is_leaving]

    @property
    def leaving(self) -> list[int]:
        return [index for index, entry in self._entries.items() if entry.is_leaving]

    def refuse(self, hello: Hello) -> tuple[PacelineError, bool] | None:
        """What stands against a host, and whether it stays so; None: nothing does."""
        mine = self._entries[0].hello
        where = f"the leader {mine.host} ({mine.address})"
        if hello.v != VERSION:
            what = f"host {hello.host} speaks version {hello.v} of the hosts' messages, the leader version {VERSION}"
            return RendezvousError(what, where, "install the same Paceline on every host"), True
        if hello.fingerprint != mine.fingerprint:
            changes = find_changes(mine.identity, hello.identity)
            what = list_changes(f"host {hello.host} has been told to train another run; different are:", changes)
            return RendezvousError(what, where, "give the same command, with the same data, on every host"), True
        problems = compare([HostFacts.from_record(each.facts) for each in (mine, hello)])
        if problems:
            return RendezvousError(problems=problems), True
        if hello.collectives != mine.collectives:
            what = f"the ranks of {hello.host} would use {hello.collectives}, those of the leader {mine.collectives}"
            do = "give every rank a GPU, or set parallel.backend=gloo on every host"
            return RendezvousError(what, f"{hello.nproc} ranks on {hello.gpus} GPUs there", do), True
        if sum(not entry.is_leaving for entry in self._entries.values()) >= self.count.most:
            here = ", ".join(entry.name for entry in self._entries.values())
            what = f"{self.count.most} hosts are here already, and --nnodes {self.count} takes no more: {here}"
            return RendezvousError(what, where, "end one of them, or start all with a larger --nnodes"), False
        return None

    def admit(self, hello: Hello) -> Entry:
        """A host that `refuse` had nothing against; it counts once it is confirmed."""
        index = self._known.get((hello.host, hello.address))
        if index is None or index in self._entries:
            index = max([*self._known.values(), *self._entries]) + 1
        self._known[(hello.host, hello.address)] = index
        self._entries[index] = Entry(index, hello)
        return self._entries[index]

    def confirm(self, index: int) -> None:
        self._entries[index].is_ready = True

    def drop(self, index: int) -> None:
        del self._entries[index]

    def call(self, now: float, *, is_first: bool = True) -> None:
        """From now on hosts are waited for; at the first call also for those who may come on top of the least number."""
        self._deadline = now + self._timeout_s
        self._enough_since = None if is_first else now - self._last_call_s

    def decide(self, now: float) -> str:
        """begin: there are enough; wait; late: the time is over."""
        assert self._deadline is not None, "nobody called"
        num_here = len(self.present)
        if num_here >= self.count.most:
            return "begin"
        if num_here < self.count.least:
            self._enough_since = None
            return "late" if now >= self._deadline else "wait"
        if self._enough_since is None:
            self._enough_since = now
        return "begin" if now - self._enough_since >= self._last_call_s else "wait"

    def seat(self) -> list[Seat]:
        """Everybody's place in the next attempt."""
        seats, first_rank = list[Seat](), 0
        for node_rank, entry in enumerate(self.present[: self.count.most]):
            hello = entry.hello
            seats.append(Seat(entry.index, hello.host, hello.address, node_rank, first_rank, hello.nproc))
            first_rank += entry.hello.nproc
        return seats

    def wants_resize(self, seats: Sequence[Seat]) -> str:
        """Why the next attempt should have another size than the one of these seats; empty: it should not."""
        seated = {seat.index for seat in seats}
        leaving = [entry.name for entry in self._entries.values() if entry.is_leaving and entry.index in seated]
        if leaving:
            return f"host {', '.join(leaving)} leaves"
        coming = [entry.name for entry in self.present if entry.index not in seated]
        if coming and len(seats) < self.count.most:
            return f"host {', '.join(coming)} has come"
        return ""

    def describe(self) -> str:
        """Who is here and who is missing, on one line."""
        here = "; ".join(f"{entry.name}, {_count(entry.hello.nproc, 'rank')}" for entry in self.present)
        missing = self.count.least - len(self.present)
        wanted = f"{len(self.present)} of {self.count} hosts"
        waiting = f"; {_count(missing, 'more host')} needed" if missing > 0 else ""
        unready = [entry.name for entry in self._entries.values() if not entry.is_ready]
        looking = f"; {', '.join(unready)} still looks for the run directory" if unready else ""
        # Wanted by whoever tries it in two terminals; else the same command was typed twice, and its ranks share one machine's GPUs.
        count = Counter(entry.name for entry in self.present)
        twice = "".join(f"; {name} is here {'twice' if n == 2 else f'{n} times'}" for name, n in count.items() if n > 1)
        return f"{wanted} here: {here}{twice}{looking}{waiting}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
