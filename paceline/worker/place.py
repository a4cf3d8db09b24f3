"""The run directory of this worker, and what the launcher wrote into it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.config.loading import DEFAULT
from paceline.files import read_json
from paceline.telemetry.layout import RunLayout

if TYPE_CHECKING:
    from paceline.launch.claim import Claim


@dataclass(frozen=True)
class Place:
    """Where this attempt writes."""

    layout: RunLayout
    attempt: int
    given: frozenset[str]
    """the dotted keys that were not left at their default"""
    claim: Claim | None = None
    """held here, by rank 0, when there is no launcher of ours"""


def take_claimed(arguments: argparse.Namespace) -> Place:
    """The directory that the launcher has claimed; the origins of its configuration lie there."""
    layout = RunLayout(arguments.out.absolute())
    origins = read_json(layout.origins)
    return Place(layout, arguments.attempt, frozenset(name for name in origins if origins[name] != DEFAULT))
