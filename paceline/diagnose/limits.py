"""How long a rank may be in a phase before that is a stall: the numbers that a configuration may change.

Limits().phase_limits["compile"]   -> 1800.0
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

PHASE_LIMITS: Mapping[str, float] = MappingProxyType(
    {
        "start": 600.0,
        "data": 300.0,
        "forward": 300.0,
        "backward": 300.0,
        "optimizer": 300.0,
        "step": 600.0,
        "evaluate": 1200.0,
        "check": 300.0,
        "log": 300.0,
        "checkpoint": 1200.0,
        "compile": 1800.0,
        "profile": 600.0,
        "snapshot": 1200.0,
        "end": 600.0,
    }
)
"""Seconds, for a phase that has no history yet. A first step may open a data set, load kernels and connect the ranks."""

UNKNOWN_PHASE_S = 600.0
"""for a phase that this version does not know"""

NEVER_LEARNED = frozenset({"start", "compile", "profile", "end"})
"""phases that come once, or are a different work each time: their history says nothing about the next one"""

RARE = frozenset({"evaluate", "check", "log", "checkpoint", "snapshot"})
"""phases between steps, of which a run may have seen only one or two"""

PATIENCE: Mapping[str, float] = MappingProxyType({**dict.fromkeys(RARE, 0.25), "data": 0.1})
"""Of the limit without history, before a policy acts on a phase that may take much longer for once in a healthy run: a full test after
quick evaluations, a save that meets a slow disk, an epoch that opens its data anew."""

STEP_PHASES = ("data", "forward", "backward", "optimizer", "step")
"""phases of a step: they come so often that nothing about the next one is new"""

UNDECLARED = "step"
"""somewhere in a loop that does not say where: in a step, or in an evaluation that it does not declare"""

FAR_FLOORS, FAR_FACTOR = 12.0, 2.0
"""times stall_floor_s, and times the limit of a policy: for how long ranks may wait for others that cannot be seen from here"""

EARLY = 0.85
"""of the floor, where a phase has a history: it is noticed within the floor, and a look, a report and a loaded machine take their time, too"""


@dataclass(frozen=True)
class Limits:
    """When a rank that does not move has stalled: stall_factor × the 99th percentile of its phase, at least stall_floor_s."""

    stall_floor_s: float = 5.0
    stall_factor: float = 5.0
    phase_limits: Mapping[str, float] = field(default_factory=lambda: PHASE_LIMITS)
    """for phases without history; one that is not named here has that of PHASE_LIMITS"""
    stopped_s: float = 1.0
    """a process that the operating system has stopped for so long is reported"""

    def without_history(self, phase: str) -> float:
        return self.phase_limits.get(phase, PHASE_LIMITS.get(phase, UNKNOWN_PHASE_S))
