"""A playbook in a directory, with the phases that are to be run: what each of them is shown, and what earlier ones have left there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.playbook.phase import Scene
from paceline.playbook.playbook import Playbook
from paceline.playbook.selection import Selection
from paceline.playbook.state import DONE, PlayRecord
from paceline.playbook.winner import Used

Links = Mapping[str, Mapping[str, Path]]
"""phase -> what it left, by word"""


@dataclass(frozen=True)
class Stage:
    """What a check, a dry run and a real one have in common."""

    playbook: Playbook
    selection: Selection
    root: Path
    """absolute"""

    def scene(self, name: str, used: Used, links: Links, number: int = 1) -> Scene:
        """What the phase of that name is shown."""
        settings = self.playbook.settings(name, used.settings)
        config = self.playbook.config_of(name)
        cases, baseline = used.cases, used.baseline
        return Scene(name, self.root / name, number, config, settings, tuple(used.settings), links, cases, baseline)

    def links(self, record: PlayRecord | None) -> dict[str, dict[str, Path]]:
        """What the phases have left that have run and passed their gates."""
        if record is None:
            return {}
        return {
            phase.name: {word: self.root / path for word, path in phase.links.items()}
            for phase in record.phases
            if phase.state == DONE and phase.links
        }

    def expected(self, name: str) -> list[str]:
        """The phases that will have run when this one begins."""
        names = self.selection.names
        return list(names[: names.index(name)])
