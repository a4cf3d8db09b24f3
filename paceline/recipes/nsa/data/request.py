"""What somebody wants prepared. No torch, no numpy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.recipes.nsa.data.tokenizer import BYTES

ANOTHER = "choose another place with --out DIR, or delete this one"
"""what to do where a directory holds something else"""


@dataclass(frozen=True)
class Request:
    """What was typed."""

    given: tuple[Path, ...] = ()
    """files and directories; none: the hub"""
    out: Path = Path("data/fineweb")
    sample: str = "10BT"
    """of the hub"""
    tokenizer: str = BYTES
    field: str = "text"
    validation_share: float = 0.01
    shard_tokens: int = 2**24
    max_tokens: int | None = None
    skip_bad: bool = False

    def parameters(self) -> dict[str, Any]:
        """What decides which tokens come out, beside the inputs and the tokenizer."""
        names = ("field", "validation_share", "shard_tokens", "max_tokens", "skip_bad")
        return {name: getattr(self, name) for name in names}
