"""Which rank slows the others down: the one that waits least, step after step."""

from __future__ import annotations

from paceline.diagnose.finding import Finding
from paceline.diagnose.sight import Sight


class Stragglers:
    """Follows how long each rank waits for the others."""

    def see(self, sight: Sight) -> list[Finding]:
        return []
