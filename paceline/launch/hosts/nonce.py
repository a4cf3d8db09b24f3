"""By what two hosts know that they see the same run directory: the leader writes a word there, and a member has to read it.

nonce = Nonce(layout); nonce.write()         # the leader
prove(read_nonce(root)) == welcome.proof     # a member: what it read is what this leader wrote
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from pathlib import Path

from paceline.files import storage_errors, write_text
from paceline.telemetry.layout import RunLayout


class Nonce:
    """The leader's word, there while hosts train together."""

    def __init__(self, layout: RunLayout) -> None:
        self.word = secrets.token_hex(8)
        self._layout = layout

    @property
    def proof(self) -> str:
        return prove(self.word)

    def write(self) -> None:
        with storage_errors(self._layout.root):
            self._layout.root.mkdir(parents=True, exist_ok=True)
            write_text(self._layout.rendezvous, self.word)

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._layout.rendezvous.unlink(missing_ok=True)


def prove(word: str) -> str:
    """By which whoever reads it in the run directory knows that it is this leader's."""
    return hashlib.sha256(word.encode()).hexdigest()


def read_nonce(root: Path) -> str:
    """What the leader wrote into the run directory, as this host sees it; empty: nothing."""
    try:
        return RunLayout(root).rendezvous.read_text(encoding="utf-8")
    except OSError:
        return ""
