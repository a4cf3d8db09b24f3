"""What a phase came to, by plain names that a gate may use, and the evidence for it.

    Outcome({"final_loss": 3.78, "failures": 0}, [Evidence("loss", "3.7785", "metrics.csv, step 256")], {"run": Path("P0/run")})

A gate on a name that a kind can never report is refused before anything starts; names under a prefix (`test.ndcg_10`) belong to a
recipe and are known when the phase has run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

Value = float | int | bool | str | None
"""None: not measured here"""


@dataclass(frozen=True)
class Grid:
    """A table that a phase shows besides its evidence."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


class Evidence(NamedTuple):
    """One line of a phase's evidence: what, the value as a person reads it, and where it stands."""

    what: str
    value: str
    source: str


@dataclass(frozen=True)
class Outcome:
    """What a phase's files say."""

    results: Mapping[str, Value]
    evidence: Sequence[Evidence] = ()
    links: Mapping[str, Path] = field(default_factory=dict)
    """what later phases and the page look for: run, best, export, report …"""
    sources: Mapping[str, str] = field(default_factory=dict)
    """name of a result -> the file it stands in, and the window it was taken over"""
    untold: Mapping[str, str] = field(default_factory=dict)
    """name of a result that such a run cannot tell -> why: a condition on it is not judged"""
    missing: Mapping[str, str] = field(default_factory=dict)
    """name of a result that this run should have told and has not -> why: a condition on it is not measured, and does not pass"""
    tables: Sequence[Grid] = ()
    skipped: str = ""
    """why there was nothing to look at here: the phase counts as skipped then"""
    verdict: str = ""
    """on the whole playbook, of a phase that judges all others"""


@dataclass(frozen=True)
class Reports:
    """The names that a kind of phase reports."""

    names: Mapping[str, str] = field(default_factory=dict)
    """name -> one phrase on what it is"""
    prefixes: Mapping[str, str] = field(default_factory=dict)
    """prefix, such as "test." -> one phrase; what follows it is the recipe's"""
    kinds: Mapping[str, type] = field(default_factory=dict)
    """of the names that are no numbers: bool or str"""

    def has(self, name: str) -> bool:
        return name in self.names or any(name.startswith(prefix) and name != prefix for prefix in self.prefixes)

    def kind_of(self, name: str) -> type:
        return self.kinds.get(name, float)

    def listed(self) -> str:
        return ", ".join([*self.names, *(f"{prefix}…" for prefix in self.prefixes)])


EVERY = {"seconds": "what the phase took, all its attempts together"}
"""What every kind reports."""
