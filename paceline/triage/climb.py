"""Climbs a ladder: reproduces the symptom, changes one thing at a time until it is gone, and confirms that this was the reason.

    outcome = Climb(subject, ladder, ledger, run_trial, say).run()     -> Outcome("cured", symptom="deadlock", cure=Change(…), …)

A cure is confirmed by switching it back, when the symptom has to return, and on again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.telemetry.amount import show_amount
from paceline.triage.changes import Change, plan_change
from paceline.triage.ladder import Ladder
from paceline.triage.ledger import Entry, Ledger
from paceline.triage.subject import Subject
from paceline.triage.verdict import Verdict, shows

RunTrial = Callable[[str, Mapping[str, Any]], tuple[Verdict, Path]]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Step:
    """One line of the table: a trial, or why there was none."""

    name: str
    settings: Mapping[str, Any]
    price: str
    result: str
    """cured, not cured, skipped, evidence; reproduced, not reproduced, came back, did not come back, still cured, cured no more"""
    what: str = ""
    samples_per_s: float | None = None
    directory: str = ""
    status: str = ""
    """of the trial, as verdict.py says it"""


@dataclass
class Outcome:
    """What a triage came to."""

    state: str
    """cured, uncertain (the symptom comes and goes by itself), not_cured, not_reproduced"""
    symptom: str
    steps: list[Step] = field(default_factory=list)
    cure: Change | None = None
    samples_per_s: float | None = None
    """with the cure"""
    reference: float | None = None
    """of the run before its symptom, or of the fastest healthy trial"""
    reference_from: str = ""

    @property
    def price(self) -> float | None:
        """The share of the throughput that the cure costs; below 0: it is faster."""
        if self.samples_per_s is None or not self.reference:
            return None
        return 1 - self.samples_per_s / self.reference


class Climb:
    """One symptom, one ladder."""

    def __init__(self, subject: Subject, ladder: Ladder, ledger: Ledger, run_trial: RunTrial, say: Say) -> None:
        self._subject = subject
        self._ladder = ladder
        self._ledger = ledger
        self._run_trial = run_trial
        self._say = say
        self._base: float | None = None
        self._steps: list[Step] = []

    def run(self) -> Outcome:
        symptom = self._ladder.config.symptom
        first = self.try_once("reproduce", "", {})
        self._base = first.samples_per_s
        is_there = shows(symptom, first.verdict, self._reproduced_base(), self._ladder.config.gain)
        self._note("as it is", {}, "", "reproduced" if is_there else "not reproduced", first)
        if not is_there:
            return self._conclude("not_reproduced", None)
        for rung in self._ladder.rungs:
            change = plan_change(rung, self._subject)
            if change.skip:
                self._steps.append(Step(rung.name, change.settings, rung.price, "skipped", change.skip))
                self._say(f"{rung.name}: skipped, {change.skip}")
                continue
            entry = self.try_once("rung", rung.name, change.settings)
            if entry.status == "refused":  # nothing was trained, so nothing is known of it
                self._note(rung.name, change.settings, rung.price, "skipped", entry)
                continue
            is_cured = self._is_cured(entry)
            if rung.is_evidence:
                self._note(rung.name, change.settings, rung.price, "evidence", entry)
                continue
            self._note(rung.name, change.settings, rung.price, "cured" if is_cured else "not cured", entry)
            if is_cured:
                return self._confirm(change)
        return self._conclude("not_cured", None)

    def try_once(self, role: str, name: str, settings: Mapping[str, Any]) -> Entry:
        """A trial, or what is known of it already."""
        known = self._ledger.find(role, name, settings)
        if known is not None:
            return known
        shown = " ".join(f"{key}={value}" for key, value in settings.items()) or "nothing changed"
        self._say(f"{_ROLES.get(role, name)}: {shown} …")
        began = time.monotonic()
        verdict, root = self._run_trial(f"{role} {name}".strip(), settings)
        entry = Entry(
            role=role,
            name=name,
            settings=dict(settings),
            status=verdict.status,
            what=verdict.what,
            samples_per_s=verdict.samples_per_s,
            last_step=verdict.last_step,
            directory=f"{root.parent.name}/{root.name}",
            seconds=round(time.monotonic() - began, 2),
        )
        if verdict.status == "refused" and role != "rung":
            do = "mend the configuration first: this is no symptom of the training"
            raise UsageError(f"a trial was refused: {verdict.what}", str(root), do)
        self._ledger.add(entry)
        return entry

    def _confirm(self, change: Change) -> Outcome:
        name = change.rung.name
        back = self.try_once("back", name, {})
        came_back = not self._is_cured(back)
        self._note("switched back", {}, "", "came back" if came_back else "did not come back", back)
        if not came_back:
            return self._conclude("uncertain", change)
        again = self.try_once("again", name, change.settings)
        is_cured = self._is_cured(again)
        self._note(
            "on again", change.settings, change.rung.price, "still cured" if is_cured else "cured no more", again
        )
        return self._conclude("cured" if is_cured else "uncertain", change)

    def _is_cured(self, entry: Entry) -> bool:
        """Without the symptom, and without another one in its place."""
        config = self._ladder.config
        return entry.status == "healthy" and not shows(config.symptom, entry.verdict, self._base, config.gain)

    def _reproduced_base(self) -> float | None:
        """Against which a run is too slow: its own pace before, where it is known."""
        reference = self._subject.reference()
        return reference / self._ladder.config.gain if reference is not None else None

    def _note(self, name: str, settings: Mapping[str, Any], price: str, result: str, entry: Entry) -> None:
        seen = (entry.what, entry.samples_per_s, entry.directory, entry.status)
        self._steps.append(Step(name, settings, price, result, *seen))
        pace = f", {show_amount(entry.samples_per_s)} samples/s" if entry.samples_per_s else ""
        why = f" ({shorten(entry.what)})" if entry.what else ""
        self._say(f"{name}: {result}{pace}{why}")

    def _conclude(self, state: str, cure: Change | None) -> Outcome:
        outcome = Outcome(state, self._ladder.config.symptom, self._steps, cure)
        if cure is not None:
            with_cure = [step for step in self._steps if step.settings == cure.settings and step.samples_per_s]
            paces = [step.samples_per_s for step in with_cure if step.samples_per_s is not None]
            outcome.samples_per_s = sum(paces) / len(paces) if paces else None
        outcome.reference = self._subject.reference()
        outcome.reference_from = "the run before its symptom"
        if outcome.reference is None:
            # Not the cure's own trials: against itself everything costs nothing.
            others = [step for step in self._steps if cure is None or step.settings != cure.settings]
            healthy = [step for step in others if step.samples_per_s and step.status == "healthy"]
            outcome.reference = max((step.samples_per_s or 0.0 for step in healthy), default=None)
            outcome.reference_from = "the fastest healthy trial"
        return outcome


_ROLES = {"reproduce": "as it is", "back": "switched back", "again": "on again"}


def shorten(text: str, most: int = 110) -> str:
    """For a line or a cell; the ledger has the whole of it."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"
