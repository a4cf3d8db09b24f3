"""A playbook in a directory, with the phases that are to be run: what each of them is shown, and what earlier ones have left there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.playbook.phase import Scene
from paceline.playbook.playbook import Playbook
from paceline.playbook.selection import Selection
from paceline.playbook.state import DONE, NOT_MET, PhaseRecord, PlayRecord
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

    def scene(
        self, name: str, used: Used, links: Links, number: int = 1, record: PlayRecord | None = None, moves: int = 0
    ) -> Scene:
        """What the phase of that name is shown."""
        settings = self.playbook.settings(name, used.settings)
        config = self.playbook.config_of(name)
        cases, baseline = used.cases, used.baseline
        place = self.root / name
        before = self._before(name, record)
        keys = tuple(used.settings)
        return Scene(name, place, number, config, settings, keys, links, cases, baseline, before, moves)

    def _before(self, name: str, record: PlayRecord | None) -> list[PhaseRecord]:
        names = list(self.playbook.phases)
        return [each for each in (record.phases if record else ()) if each.name in names[: names.index(name)]]

    def links(self, record: PlayRecord | None) -> dict[str, dict[str, Path]]:
        """What the phases have left that have run and passed their gates, or need not pass them."""
        if record is None:
            return {}
        return {
            phase.name: {word: self.root / path for word, path in phase.links.items()}
            for phase in record.phases
            if phase.links and (phase.state == DONE or self._may_miss(phase))
        }

    def _may_miss(self, phase: PhaseRecord) -> bool:
        known = self.playbook.phases.get(phase.name)
        return phase.state == NOT_MET and known is not None and not known.required

    def expected(self, name: str) -> list[str]:
        """The phases that will have run when this one begins."""
        names = self.selection.names
        return list(names[: names.index(name)])
