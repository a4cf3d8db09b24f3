"""Messages that people meet: a file of patterns, each with its cause and its cure, looked for in the lines of logs.

match_messages(["RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB. …"])   -> [Finding("out_of_memory", …)]
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from paceline.diagnose.finding import Finding, Witness

_FILE = Path(__file__).with_name("signatures.yaml")
_RANK = re.compile(r"\[rank ?(\d+)\]", re.IGNORECASE)
_SHOWN = 300
_LONGEST = 4000
"""characters of a line that are looked at; a line of megabytes is nobody's message"""


@dataclass(frozen=True)
class Signature:
    """One message."""

    name: str
    pattern: re.Pattern[str]
    cause: str
    cure: str
    kind: str
    severity: str


@functools.cache
def load_signatures() -> tuple[Signature, ...]:
    """All of them, the narrow ones first."""
    import yaml

    entries = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return tuple(
        Signature(
            entry["name"],
            re.compile(entry["pattern"]),
            entry["cause"],
            entry["cure"],
            entry.get("kind", "message"),
            entry["severity"],
        )
        for entry in entries
    )


def match_messages(lines: Iterable[str], rank: int | None = None) -> list[Finding]:
    """Each message that is known, once, with the first line that has it; `rank`: whose lines these are, if they do not say."""
    first: dict[str, tuple[Signature, str, set[int]]] = {}
    counts: dict[str, int] = {}
    for line in lines:
        text = line[:_LONGEST]
        signature = next((each for each in load_signatures() if each.pattern.search(text)), None)
        if signature is None:
            continue
        counts[signature.name] = counts.get(signature.name, 0) + 1
        _, _, ranks = first.setdefault(signature.name, (signature, text.strip(), set()))
        said = _RANK.search(text)
        if said is not None:
            ranks.add(int(said[1]))
        elif rank is not None:
            ranks.add(rank)
    return [_report(*found, counts[name]) for name, found in first.items()]


def _report(signature: Signature, line: str, ranks: set[int], count: int) -> Finding:
    shown = line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"
    times = f", {count} times" if count > 1 else ""
    return Finding(
        signature.kind,
        signature.cause,
        signature.cure,
        severity=signature.severity,
        cause=signature.name,
        rank=min(ranks) if len(ranks) == 1 else None,
        ranks=tuple(sorted(ranks)) if len(ranks) > 1 else (),
        witnesses=(Witness("log", True, f"{shown}{times}"),),
        numbers={"lines": count},
    )
