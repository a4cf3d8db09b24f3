"""What the race has been told and has decided: hands results to it in order, and keeps the history of its verdicts.

scores = Scoreboard(race)
scores.observe(row, measured, assignment); scores.describe(sweep, rows, Ending("running"))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from paceline.sweep.evidence import Assignment, RaceSettings, Verdict
from paceline.sweep.ledger import Row
from paceline.sweep.measured import Measured
from paceline.sweep.outcome import Ending, Sweep, describe_sweep
from paceline.sweep.power import say_power
from paceline.sweep.race import Race


class Scoreboard:
    """One race and everything it saw."""

    def __init__(self, race: Race, settings: RaceSettings) -> None:
        self._race = race
        self._settings = settings
        self._counted: set[int] = set()
        self._history: list[dict[str, Any]] = []
        self._verdicts: Mapping[str, Verdict] = race.ranking().verdicts
        self._device_s = 0.0

    @property
    def num_observed(self) -> int:
        return len(self._counted)

    def full_repeats(self) -> int:
        """Trials of each case that the full grid would have, as far as that is known."""
        return self._race.full_repeats()

    def next(self) -> Assignment | None:
        return self._race.next()

    def observe(self, row: Row, measured: Measured, assignment: Assignment) -> None:
        """Hands a result to the race, and notes what it decided."""
        self._race.observe(measured.result(assignment.case, assignment.round, row.began))
        self._counted.add(row.id)
        self._device_s += measured.device_s
        before, self._verdicts = self._verdicts, self._race.ranking().verdicts
        decided = [
            {"case": name, "was": before[name].verdict, "verdict": new.verdict, "evidence": new.evidence}
            for name, new in self._verdicts.items()
            if before[name].verdict != new.verdict
        ]
        value = measured.metric if measured.metric is not None else measured.pace
        self._history.append(
            {
                "time": row.ended,
                "trial": row.id,
                "case": row.case,
                "round": row.round,
                "status": measured.status,
                "steps": row.steps,
                "value": value,
                "device_s": self._device_s,
                "why": assignment.why,
                "decided": decided,
            }
        )

    def describe(self, sweep: Sweep, rows: Sequence[Row], ending: Ending) -> dict[str, Any]:
        ending = replace(ending, notes=(*ending.notes, *self._notes()))
        grid = self._race.full_repeats()
        return describe_sweep(sweep, rows, self._counted, self._race.ranking(), grid, self._history, ending)

    def _notes(self) -> list[str]:
        """What the plan cannot resolve, and what would."""
        comparison, repeats = self._race.ranking().comparison, self._settings.repeats
        if repeats == 1 and self._counted:
            return ["one trial of each case has no spread: what is close cannot be told apart; set repeats, or auto"]
        if comparison is None or comparison.freedom < 1:
            return []
        settings = self._settings
        # `auto` takes what the noise asks for, and is silent, unless that is more than it may.
        repeats = settings.max_rounds if repeats is None else repeats
        said = say_power(settings.effect, comparison.noise, repeats, settings.power, settings.confidence)
        return [said] if said is not None else []
