"""What is no incident though it looks like one: ranks that were asked to end, or have said why, and what the training handles itself.

excuses = Excuses(layout, attempt=1, is_ours=True)
excuses.explain(finding)       # a death on a full disk is told as that
excuses.cover(finding)         # True: nobody has to be alarmed
"""

from __future__ import annotations

import os
from dataclasses import replace

from paceline.diagnose.finding import Finding, Witness
from paceline.errors import StorageError
from paceline.telemetry.follow import Follower
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.stop_request import read_stop_request

DEATHS = ("dead_rank", "dead_host")
_SAID = tuple(f"exit_{code}" for code in (2, 3, 4, 6, 130))
"""causes of a death after a word: our own worker ends with these, and has said why, to its launcher if not in the run directory"""
_NO_ROOM_BYTES = 1 << 16


class Excuses:
    """Of one attempt."""

    def __init__(self, layout: RunLayout, attempt: int, *, is_ours: bool) -> None:
        """`is_ours`: its ranks are our own worker."""
        self._layout = layout
        self._attempt = attempt
        self._is_ours = is_ours
        self._events = Follower(layout.events)
        self._has_spoken = False
        """a rank has said itself that it ends, or what went wrong"""

    def explain(self, finding: Finding) -> Finding:
        """A rank that ends on a full disk cannot say so there: it ends with an exit code of ours, and the disk says the rest."""
        if finding.kind != "dead_rank" or finding.cause != f"exit_{StorageError.exit_code}" or not self._is_ours:
            return finding
        try:
            room = os.statvfs(self._layout.root)
        except OSError:  # the directory itself has gone
            return finding
        free = room.f_bavail * room.f_frsize
        if free >= _NO_ROOM_BYTES:
            return finding
        return replace(
            finding,
            kind="disk_full",
            cause="disk_full",
            what=f"the disk of the run directory is full: {finding.what}",
            do="free some space there, or choose another place with --out DIR; the same command goes on",
            witnesses=(*finding.witnesses, Witness("kernel", True, f"{free:,} bytes are free")),
        )

    def cover(self, finding: Finding) -> bool:
        if finding.kind == "not_finite":
            return self._is_ours  # train.nonfinite says what to do about it
        if finding.kind not in DEATHS:
            return False
        if self._is_ours and finding.cause in _SAID:
            return True
        while not self._has_spoken and (events := self._events.records()):  # a long file comes in pieces
            self._has_spoken = any(map(self._is_word, events))
        return self._has_spoken or read_stop_request(self._layout.stop_request, self._attempt) is not None

    def _is_word(self, event: dict[str, object]) -> bool:
        """Of a victim it does not count: whoever killed its peer may not have said a thing."""
        is_ours = event.get("attempt") == self._attempt
        kind = event.get("kind")
        return is_ours and (kind == "end" or (kind == "failure" and not event.get("secondary")))
