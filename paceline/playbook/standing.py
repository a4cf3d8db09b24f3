"""Whether what a phase has left is what is asked for now: of the same settings and, where that counts, of this machine and this code.

    standing.plan(record, entry, used, links)      -> Work    in the directory that it has already, or in a fresh one
    standing.find_outdated(record, entry, why)     -> "what it left is of other settings (data.users: 60 → 70); not asked for …"

A playbook that judges (`accept`) says something about a machine and its code: on another one its phases are done again. What others
train stays what it is wherever it was trained, and goes on there; the record says where that was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from paceline.config.source import show
from paceline.errors import PacelineError
from paceline.playbook.ground import show_difference
from paceline.playbook.phase import Work
from paceline.playbook.preview import show_command
from paceline.playbook.stage import Links, Stage
from paceline.playbook.state import PhaseRecord, PlayRecord, relative
from paceline.playbook.winner import Used, find_used
from paceline.recipes.job import load_job
from paceline.sweep.fingerprint import own_digest

_DONE_ELSEWHERE = "done on another machine or with other code"
_OWN = "source of the script or recipe"


class Standing:
    """Of the phases of one playbook, held against one start of it."""

    def __init__(self, stage: Stage, ground: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._stage = stage
        self._playbook = stage.playbook
        self._ground = dict(ground)
        self._say = say
        self._grounds: dict[tuple[str, ...], dict[str, str]] = {}
        """by configuration and settings: the digest of a package is a walk over all of its files"""

    def mark(self, entry: PhaseRecord) -> None:
        """Notes on a phase that has run where that was: the record says on which machine it is gone on with, not on which it was begun."""
        ground = self._ground_of(entry.name, entry.settings) if entry.has_run else {}
        if entry.has_run and entry.ground and (moved := show_difference(entry.ground, ground)):
            entry.note = f"{_DONE_ELSEWHERE} ({moved})"
        elif entry.note.startswith(_DONE_ELSEWHERE):
            entry.note = ""

    def settle(self, entry: PhaseRecord) -> None:
        """A planned phase that had run is run once more, here: what was done elsewhere is gone."""
        entry.ground = self._ground_of(entry.name, entry.settings)
        if entry.note.startswith(_DONE_ELSEWHERE):
            entry.note = ""

    def plan(self, record: PlayRecord, entry: PhaseRecord, used: Used, links: Links) -> Work:
        """The work of a phase; a phase that is to be done again begins with an empty record."""
        work = self._plan_work(record, entry, used, links)
        settings = self._playbook.settings(entry.name, used.settings)
        ground = self._ground_of(entry.name, settings)
        moved = show_difference(entry.ground, ground) if entry.fingerprint else ""
        changed = self._find_change(entry, work, settings, ground)
        if changed:
            self._say(f"{entry.name}: it is done again, because what was begun is of {changed}")
            # For the others the ledger of a sweep knows best which of its trials are still good.
            self._begin_again(
                entry,
                f"done again, because what was begun is of {changed}",
                is_moved=bool(moved and self._playbook.is_bound),
            )
            work = self._plan_work(record, entry, used, links)
        elif moved and entry.ground:
            entry.note = entry.note if entry.has_run else f"begun on another machine or with other code ({moved})"
            self._say(f"{entry.name}: {entry.note}")
        if not entry.has_run:
            entry.ground = ground
        entry.settings, entry.fingerprint = settings, work.fingerprint(self._stage.root)
        entry.command, entry.place = show_command(work), relative(work.place, self._stage.root)
        return work

    def find_outdated(self, record: PlayRecord, entry: PhaseRecord, reason: str) -> str:
        """Why what an earlier start left says nothing about what is asked for now; empty: it does. `reason`: why it is not run."""
        phase, links = self._playbook.phases[entry.name], self._stage.links(record)
        if reason == phase.otherwise:
            return reason
        if old := next((source for source in phase.trained().values() if record.phase(source).outdated), None):
            return f"what it left is not of what is asked for now (as that of {old}); {reason}"
        try:
            used = find_used(self._playbook, entry.name, links)
            work = self._plan_work(record, entry, used, links)
        except PacelineError as error:
            return f"what it left is of an earlier start ({error.problems[0].what}); {reason}"
        settings = self._playbook.settings(entry.name, used.settings)
        changed = self._find_change(entry, work, settings, self._ground_of(entry.name, settings))
        return f"what it left is of {changed}; {reason}" if changed else ""

    def _find_change(
        self, entry: PhaseRecord, work: Work, settings: Mapping[str, Any], ground: Mapping[str, str]
    ) -> str:
        """What is another than when the phase was begun, as far as that makes its results others."""
        if not entry.fingerprint:
            return ""
        found = []
        if work.fingerprint(self._stage.root) != entry.fingerprint:
            found.append(f"other settings ({_show_changes(entry, settings)})")
        moved = show_difference(entry.ground, ground) if self._playbook.is_bound else ""
        return " and ".join([*found, *([f"another machine or other code ({moved})"] if moved else [])])

    def _ground_of(self, name: str, settings: Mapping[str, Any]) -> dict[str, str]:
        """With the code that is not Paceline's, where the phase runs such; as it was when this start first asked."""
        if not self._playbook.phases[name].takes_settings:
            return dict(self._ground)
        config, words = self._playbook.config_of(name), [f"{key}={show(value)}" for key, value in settings.items()]
        found = self._grounds.get((config, *words))
        if found is None:
            digest = ""
            with contextlib.suppress(PacelineError):  # what is wrong with its configuration is said when it is run
                digest = own_digest(load_job(config, words))
            found = self._grounds[config, *words] = self._ground | ({_OWN: digest} if digest else {})
        return dict(found)

    def _begin_again(self, entry: PhaseRecord, note: str, *, is_moved: bool) -> None:
        fresh = PhaseRecord(entry.name, entry.kind, entry.about, numbers=entry.numbers, note=note)
        fresh.number, fresh.moves = entry.number + 1, entry.moves + is_moved
        vars(entry).update(vars(fresh))

    def _plan_work(self, record: PlayRecord, entry: PhaseRecord, used: Used, links: Links) -> Work:
        scene = self._stage.scene(entry.name, used, links, entry.number, record, entry.moves)
        return self._playbook.phases[entry.name].plan_work(scene)


def _show_changes(entry: PhaseRecord, settings: Mapping[str, Any]) -> str:
    changed = [
        f"{key}: {show(entry.settings.get(key))} → {show(settings.get(key))}"
        for key in dict.fromkeys([*entry.settings, *settings])
        if entry.settings.get(key) != settings.get(key)
    ]
    return ", ".join(changed) or "what it is asked to do"
