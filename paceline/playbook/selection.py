"""Which phases of a playbook are to be run: all that are enabled, some by name, or from one on.

select(playbook, phases="P0,P1", start=None)   -> Selection(names=("P0", "P1"), skipped={"P2": "not asked for (--phases P0,P1)", …})
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.config.nearest import nearest
from paceline.errors import UsageError
from paceline.playbook.playbook import Playbook


@dataclass(frozen=True)
class Selection:
    """What is to be run, in order, and why the rest is not."""

    names: tuple[str, ...]
    skipped: Mapping[str, str]


def select(playbook: Playbook, phases: str | None = None, start: str | None = None) -> Selection:
    """The selection that the flags ask for; a phase that is off by default runs when it is named in --phases."""
    if phases is not None and start is not None:
        raise UsageError(
            "--phases and --from cannot be combined", f"--phases {phases} --from {start}", "give one of them"
        )
    order = list(playbook.phases)
    named = [word.strip() for word in phases.split(",")] if phases is not None else None
    for word in named if named is not None else [start] if start is not None else []:
        _check(word, order, "--phases" if phases is not None else "--from")
    first = order.index(start) if start is not None else 0
    names, skipped = [], {}
    for place, name in enumerate(order):
        is_off = not playbook.phases[name].enabled
        typed_off = is_off and playbook.where(name, "enabled").startswith("override")
        given = getattr(playbook.phases[name], "best", None)
        if named is not None and name not in named:
            skipped[name] = f"not asked for (--phases {phases})"
        elif place < first:
            skipped[name] = f"not asked for (--from {start})"
        elif is_off and (named is None or typed_off):
            skipped[name] = f"not asked for: {name}.enabled=true runs it"
        elif given is not None:
            skipped[name] = f"its winner was given by hand: {given}"
        else:
            names.append(name)
    return Selection(tuple(names), skipped)


def _check(word: str, order: list[str], flag: str) -> None:
    if word in order:
        return
    close = nearest(word, order)
    do = f"write {close}" if close else f"name one of {', '.join(order)}"
    raise UsageError(f"there is no phase {word!r}", flag, do)
