"""Which phases of a playbook are to be run: all that are enabled and make sense here, some by name, from one on, or all but some.

select(playbook, phases="P0,P1", start=None)   -> Selection(names=("P0", "P1"), skipped={"P2": "not asked for (--phases P0,P1)", …})
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.config.nearest import nearest
from paceline.config.source import show
from paceline.errors import PacelineError, UsageError
from paceline.playbook.condition import holds, read_facts
from paceline.playbook.playbook import Playbook


@dataclass(frozen=True)
class Selection:
    """What is to be run, in order, and why the rest is not."""

    names: tuple[str, ...]
    skipped: Mapping[str, str]


def select(
    playbook: Playbook, phases: str | None = None, start: str | None = None, skip: str | None = None
) -> Selection:
    """The selection that the flags ask for; a phase that is off by default runs when it is named in --phases."""
    if phases is not None and start is not None:
        raise UsageError(
            "--phases and --from cannot be combined", f"--phases {phases} --from {start}", "give one of them"
        )
    order = list(playbook.phases)
    named = [word.strip() for word in phases.split(",")] if phases is not None else None
    for word in named if named is not None else [start] if start is not None else []:
        _check(word, order, "--phases" if phases is not None else "--from")
    unwanted = [word.strip() for word in skip.split(",")] if skip is not None else []
    for word in unwanted:
        _check(word, order, "--skip")
    first = order.index(start) if start is not None else 0
    names, skipped, absent = [], dict[str, str](), list[str]()
    for place, name in enumerate(order):
        is_off = not playbook.phases[name].enabled
        typed_off = is_off and playbook.where(name, "enabled").startswith("override")
        given = getattr(playbook.phases[name], "best", None)
        if (named is not None and name not in named) or place < first:
            absent.append(name)  # it may have been run in another start
        if named is not None and name not in named:
            skipped[name] = f"not asked for (--phases {phases})"
        elif place < first:
            skipped[name] = f"not asked for (--from {start})"
        elif is_off and (named is None or typed_off):
            skipped[name] = f"not asked for: {name}.enabled=true runs it"
        elif given is not None:
            skipped[name] = f"its winner was given by hand: {given}"
        elif name in unwanted:
            skipped[name] = f"not wanted (--skip {skip})"
        elif reason := _find_reason(playbook, name, {each: skipped[each] for each in skipped if each not in absent}):
            skipped[name] = reason
        else:
            names.append(name)
    return Selection(tuple(names), skipped)


def _find_reason(playbook: Playbook, name: str, skipped: Mapping[str, str]) -> str:
    """Why a phase makes no sense here; empty: it does."""
    phase = playbook.phases[name]
    missing = next((source for source in phase.trained().values() if source in skipped), None)
    if missing is not None and not phase.required:
        return f"it looks at {missing}, which is skipped: {skipped[missing]}"
    if phase.when is None:
        return ""
    where = playbook.where(name, "when")
    # What was configured, not what the phase makes of it: one that trains one rank alone asks how many there are.
    words = [f"{key}={show(value)}" for key, value in playbook.configured(name).items()]
    try:
        facts = read_facts(playbook.config_of(name), words)
    except PacelineError:
        return ""  # what is wrong with its configuration is said with everything else
    return "" if holds(phase.when, facts, where) else phase.otherwise or f"`{phase.when}` does not hold"


def _check(word: str, order: list[str], flag: str) -> None:
    if word in order:
        return
    close = nearest(word, order)
    do = f"write {close}" if close else f"name one of {', '.join(order)}"
    raise UsageError(f"there is no phase {word!r}", flag, do)
