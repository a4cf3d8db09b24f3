"""How far a preparation is, as it tells whoever shows it. No torch, no numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How far it is."""

    phase: str
    """listing, reading, tokenizing, verifying"""
    done: int
    total: int
    """of whatever the share that is done follows from: bytes, files, tokens; 0: nobody knows yet"""
    amount: int = 0
    """what people count by"""
    unit: str = "files"


Report = Callable[[Progress], None]
