"""The processes below one process, as the system knows them at this moment, and which of them are ranks of a training.

find_ranks(held_runner)      -> {0: HeldProcess(4712), 1: HeldProcess(4713)}
hold_script(held_runner)     -> HeldProcess(4711)

A launcher tells each rank its number in the environment variable RANK, which what a rank starts inherits: the uppermost one with a
number is the rank.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict

from paceline.supervise.rank_process import HeldProcess


def parent_of(pid: int) -> int:
    """0 if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return 0
    return int(text[text.rindex(b")") + 2 :].split()[1])


def list_children() -> dict[int, list[int]]:
    """Of every process of this machine."""
    children: dict[int, list[int]] = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdecimal():
            children[parent_of(int(name))].append(int(name))
    return children


def hold_descendants(roots: dict[int, HeldProcess], children: dict[int, list[int]]) -> dict[int, HeldProcess]:
    """What the given processes have started, and what that has, held; the roots are not among them."""
    found: dict[int, HeldProcess] = {}
    queue = list(roots.values())
    while queue:
        parent = queue.pop()
        for pid in children.get(parent.pid, ()):
            if pid in found or pid in roots:
                continue
            with contextlib.suppress(OSError):
                child = HeldProcess(pid)
                # Asked now that we hold it: the number may have changed hands, and a dead parent proves nothing.
                if parent_of(pid) == parent.pid and parent.is_alive:
                    found[pid] = child
                    queue.append(child)
                else:
                    child.close()
    return found


def find_ranks(runner: HeldProcess) -> dict[int, HeldProcess]:
    """The ranks among the descendants of the process that runs a script; what is not returned is let go of."""
    found = hold_descendants({runner.pid: runner}, list_children())
    numbers = {pid: _rank_of(process) for pid, process in found.items()}
    ranks: dict[int, HeldProcess] = {}
    for pid, process in found.items():
        number = numbers[pid]
        if number is not None and numbers.get(parent_of(pid)) != number:
            ranks.setdefault(number, process)
    for process in found.values():
        if process not in ranks.values():
            process.close()
    return ranks


def hold_script(runner: HeldProcess) -> HeldProcess | None:
    """What the process that runs a script has started for it; None: it has ended, or has not begun."""
    found = hold_descendants({runner.pid: runner}, {runner.pid: list_children().get(runner.pid, [])[:1]})
    return next(iter(found.values()), None)


def _rank_of(process: HeldProcess) -> int | None:
    text = process.environment().get("RANK", "")
    return int(text) if text.isdecimal() else None
