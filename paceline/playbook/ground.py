"""What a phase is done on: the machine and the code. On another one its numbers are not those that would be measured here.

    find_ground()                    -> {"host": "node-a", "GPUs": "8 × NVIDIA H200", "torch": "2.13.0", "source of paceline": "4be1…", …}
    show_difference(old, new)        -> "torch: 2.12.1 → 2.13.0"

The name of the host is part of it: two nodes of one kind may share a directory, and only one of them may be sick.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping

from paceline.cores import cpu_count
from paceline.launch.hardware import driver_version
from paceline.launch.hosts.facts import collect_facts

_NONE = "none"
_SEEN = "CUDA_VISIBLE_DEVICES"


def find_ground(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """This machine and this code, in words; takes a fifth of a second. `environment` stands for this process's in a test."""
    facts = collect_facts("127.0.0.1", nproc=0)
    gpus = ", ".join(f"{count} × {name}" for name, count in Counter(facts.gpus).items())
    return {
        "host": facts.host,
        "platform": facts.platform,
        "cores": str(cpu_count()),
        "GPUs": gpus or _NONE,
        _SEEN: (os.environ if environment is None else environment).get(_SEEN, "not set"),
        "driver": driver_version() or _NONE,
        "Python": facts.python,
        "torch": facts.torch,
        "torch's CUDA": facts.cuda,
        "NCCL": facts.nccl,
        "paceline": facts.paceline,
        "source of paceline": facts.digest,
    }


def show_difference(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """What is another by now; empty: nothing is."""
    if not old:
        return "nobody noted on which machine, and with which code"
    names = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
    return ", ".join(f"{name}: {old.get(name, 'not noted')} → {new.get(name, 'not noted')}" for name in names)
