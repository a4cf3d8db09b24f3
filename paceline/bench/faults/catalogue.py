"""The faults of the matrix: what each does to which rank, on what settings, and what counts as having understood it.

CATALOGUE["loop_forward"]  -> Fault("loop_forward", {"kind": "loop", "place": "forward"}, Answer(("stall",), ("forward",)))

A clean run is a fault of which nothing is to be noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What a finding has to say to be right."""

    kinds: tuple[str, ...]
    causes: tuple[str, ...] = ()
    """any of these as its cause or phase; none: the kind says it all"""
    names_rank: bool = True
    """False: a whole machine suffers, and nobody is to be blamed"""


@dataclass(frozen=True)
class Fault:
    """One kind of fault."""

    name: str
    wish: Mapping[str, Any]
    """for the injector, without rank, step and log"""
    answer: Answer | None
    """None: a clean run"""
    settings: tuple[str, ...] = ()
    """overrides of the run"""
    steps: tuple[int, int] = (25, 60)
    """between which it strikes"""
    least_ranks: int = 2
    most_ranks: int = 4
    only_rank: int | None = None
    """where only one of them does what can break"""
    limit_s: float = 5.0
    """within which it is to be noticed: five times the pace of a phase is less, in these runs"""
    limit_steps: int | None = None
    """in place of that, where the run goes on and is only slow"""
    cap_s: float = 30.0
    """after which nobody waits any longer"""
    cap_steps: int | None = None
    needs: str = ""
    """`tmpfs`: the run has to lie on a small one"""
    length: int = 100_000
    """optimizer steps of the run; a clean one has to come to its end"""
    seconds: float = 20.0
    """what it takes, roughly: long ones begin first"""


_PLACES = ("data", "forward", "backward")
_LOADER = ("data.placement=host", "data.num_workers=1")
_SHARES = (0.10, 0.25, 1.00)
_EVERYWHERE = (*_PLACES, "elsewhere", "optimizer", "")
_COLLECTIVE = ("collective", "order", "mismatch")


def _build() -> list[Fault]:
    faults = [
        Fault("sigstop", {"kind": "sigstop"}, Answer(("stopped",))),
        Fault("sigkill", {"kind": "sigkill"}, Answer(("dead_rank",))),
        *(Fault(f"loop_{p}", {"kind": "loop", "place": p}, Answer(("stall",), (p,))) for p in _PLACES),
        # Two ranks that disagree are two against nobody: who is the odd one shows from three on.
        Fault("order", {"kind": "order"}, Answer(("stall",), _COLLECTIVE), least_ranks=3),
        Fault("skip", {"kind": "skip"}, Answer(("stall",), _COLLECTIVE), least_ranks=3),
        Fault("sleeping_loader", {"kind": "sleep", "place": "loader"}, Answer(("stall",), ("data", "loader")), _LOADER),
        Fault("nan", {"kind": "nan"}, Answer(("not_finite",))),
        Fault(
            "memory",
            {"kind": "memory", "mib": 3, "most_mib": 4500},
            Answer(("memory_growth",)),
            limit_s=60.0,
            cap_s=90.0,
            seconds=30.0,
        ),
        Fault("disk_full", {"kind": "disk_full"}, Answer(("disk_full",), names_rank=False), needs="tmpfs"),
        Fault(
            "stuck_save",
            {"kind": "stuck_save"},
            Answer(("stall",), ("checkpoint",)),
            ("checkpoint.every_steps=6",),  # a pace is known after a few of them
            steps=(45, 75),
            only_rank=0,  # a state as small as this one is one shard
        ),
    ]
    for share in _SHARES:
        percent = round(100 * share)
        faults += [
            Fault(
                f"slow_{place}_{percent}",
                {"kind": "slow", "place": place, "share": share},
                Answer(("straggler",), (place,)),
                steps=(60, 90),
                limit_steps=50,
                cap_s=60.0,
                cap_steps=200,
                seconds=25.0,
            )
            for place in _PLACES
        ]
        faults.append(
            Fault(
                f"throttle_{percent}",
                {"kind": "throttle", "share": share},
                Answer(("straggler", "throttled"), (*_EVERYWHERE, "quota")),
                steps=(60, 90),
                most_ranks=2,  # of a cell's two cores each has one: what it is denied, nobody else can use
                limit_steps=50,
                cap_s=60.0,
                cap_steps=200,
                seconds=25.0,
            )
        )
    everybody = {"rank": -1}
    faults += [
        Fault("clean", {"kind": "none"}, None, length=300),
        Fault(
            "clean_evaluation",
            {"kind": "long_evaluation", "pause_s": 8.0, **everybody},
            None,
            ("evaluate.every_steps=60",),
            length=120,
            seconds=35.0,
        ),
        Fault(
            "clean_compile",
            {"kind": "none"},
            None,
            ("train.compile.enabled=true", "model.blocks=1"),
            most_ranks=2,
            length=120,
            seconds=60.0,
        ),
        Fault(
            "clean_recompile",
            {"kind": "recompile", **everybody},
            None,
            ("train.compile.enabled=true", "model.blocks=1"),
            most_ranks=2,
            length=120,
            seconds=100.0,
        ),
        Fault(
            "clean_checkpoint",
            {"kind": "long_save", "pause_s": 1.2, **everybody},
            None,
            ("evaluate.every_steps=null", "checkpoint.every_steps=60", "checkpoint.asynchronous=false"),
            steps=(1, 1),
            length=120,
            seconds=35.0,
        ),
    ]
    return faults


CATALOGUE: dict[str, Fault] = {fault.name: fault for fault in _build()}
