"""What a run directory will say about the run: who asks for it, and with which configuration.

RunDescription("sasrec", "", sys.argv, config_text, origins, {"fingerprint": "9f2c…", "values": {…}}, ["precision.mode"])
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunDescription:
    """Everything that is known of a run before it has a directory."""

    recipe: str
    name: str
    argv: list[str]
    config_text: str
    """the resolved configuration, as config.yaml will hold it"""
    origins: Mapping[str, Any]
    identity: Mapping[str, Any]
    """{"fingerprint": …, "values": {dotted key: value}}"""
    numerics: Collection[str] = ()
    """keys of which another value changes digits, not the training"""
    code: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    """what trains it: the name of each package, and where it lies"""
