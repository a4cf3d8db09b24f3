"""Where one rank stands: its last known pulse, how long it has been there, and what its process does meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.diagnose.sight import ProcessSight
from paceline.telemetry.pulse import Pulse

_ORDER = {"start": 0, "data": 1, "step": 2, "forward": 2, "compile": 2, "backward": 3, "optimizer": 4, "end": 6}
_BETWEEN = 5
"""log, check, evaluate, snapshot, checkpoint and profile come after the update, in an order that depends on where the run is"""

WAITING = frozenset({"backward", "optimizer", "log", "check", "evaluate", "snapshot", "checkpoint", "step", "end"})
"""phases in which a healthy rank may wait for the others"""
BUSY = 0.2
"""cores; a rank that computes uses one, if the machine has one to spare"""
IDLE = 0.3
"""cores; a rank that waits for a socket uses next to nothing"""
FEWER = 0.25
"""a rank that waits uses at most this share of what one that computes does"""


@dataclass(frozen=True)
class Standing:
    """One rank, as it stands now."""

    rank: int
    host: str
    pulse: Pulse | None
    """None: it never gave one"""
    held_s: float
    """for how long nothing of it has moved, by the watcher's clock"""
    process: ProcessSight | None
    cores: float | None
    """used since it last moved; None: not known"""
    is_elsewhere: bool = False
    """on another host: nothing but its pulse is known"""
    silent_s: float = 0.0
    """for how long not even that has come from there"""
    is_unseen: bool = False
    """where it is now cannot be told from here"""

    @property
    def place(self) -> tuple[int, int, int]:
        """Its place in the order that all ranks go through; smaller is further behind. (step, phase, collectives begun between steps)."""
        if self.pulse is None:
            return -1, 0, 0
        order = _ORDER.get(self.pulse.phase, _BETWEEN)
        # Between steps the number of collectives begun is the only order that all ranks share.
        return self.pulse.step, order, self.pulse.collectives_enqueued if order == _BETWEEN else 0

    @property
    def phase(self) -> str:
        return self.pulse.phase if self.pulse is not None else "start"

    @property
    def where(self) -> str:
        return f"{self.phase} of step {self.step}" if self.pulse is not None else "its start"

    @property
    def step(self) -> int | None:
        return self.pulse.step if self.pulse is not None else None

    @property
    def is_idle(self) -> bool:
        return self.cores is not None and self.cores <= IDLE

    def describe(self) -> str:
        return f"rank {self.rank}: {self.where} for {self.held_s:.1f} s"


def find_worker(standings: Sequence[Standing]) -> Standing | None:
    """The only one that computes, while all others wait."""
    known = [(standing.cores, standing) for standing in standings if standing.cores is not None]
    if len(known) < 2 or len(known) < len(standings):
        return None
    (most, worker), *others = sorted(known, key=lambda pair: -pair[0])
    return worker if most >= BUSY and all(cores <= FEWER * most for cores, _ in others) else None


def describe_places(standings: list[Standing]) -> str:
    """`ranks 0, 2 and 3 in backward of step 12`, the largest group first."""
    groups: dict[str, list[int]] = {}
    for each in standings:
        where = f"{each.phase} of step {each.step}" if each.pulse is not None else "no place yet"
        groups.setdefault(where, []).append(each.rank)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return "; ".join(f"{name_ranks(ranks)} in {where}" for where, ranks in ordered)


def name_ranks(ranks: list[int] | tuple[int, ...]) -> str:
    """`rank 3`, `ranks 0, 2 and 3`, `ranks 0 to 62`."""
    ordered = sorted(ranks)
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"ranks {ordered[0]} to {ordered[-1]}"
    shown = ordered if len(ordered) <= 8 else ordered[:7]
    if len(shown) < len(ordered):
        return f"ranks {', '.join(map(str, shown))} and {len(ordered) - len(shown)} more"
    return f"ranks {', '.join(map(str, shown[:-1]))} and {shown[-1]}"
