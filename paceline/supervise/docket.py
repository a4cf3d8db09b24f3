"""The incidents of one attempt: which are open, and which have ended and may come back.

docket = Docket(layout, attempt=1)
docket.find(finding)                              -> the open one; None: it begins now
docket.begin(finding, others, sight, policy)      -> a new one, one that an earlier supervisor left, or one that has come back

What comes and goes is one incident, and counted: a run that stands still for a moment every minute must not fill its disk with directories.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from paceline.diagnose.finding import Finding
from paceline.diagnose.sight import Sight
from paceline.supervise.incident import Incident
from paceline.supervise.inheritance import Inheritance
from paceline.telemetry.layout import RunLayout


class Docket:
    """What one supervisor has to do with."""

    def __init__(self, layout: RunLayout, attempt: int, host_index: int = 0) -> None:
        self.incidents: list[Incident] = []
        """all that were open since, the first noticed first"""
        self._layout = layout
        self._attempt = attempt
        self._host_index = host_index
        self._inheritance = Inheritance(layout, attempt, _key, host_index)
        self._open: dict[Hashable, Incident] = {}
        self._begun_by: dict[Hashable, tuple[str, int | None]] = {}
        self._ended: dict[tuple[str, int | None], Incident] = {}
        """by the finding as it was noticed: stacks may have named another rank since, and would do so again"""

    def find(self, finding: Finding) -> Incident | None:
        return self._open.get(_key(finding))

    def begin(self, finding: Finding, others: Sequence[Finding], sight: Sight, policy: str) -> Incident:
        """Open from here on."""
        key, subject = _key(finding), finding.subject
        known = self._ended.pop(subject, None)
        incident = known or self._inheritance.take(key, sight)
        if incident is None:
            incident = known = self._inheritance.take_ended(subject, sight)
        if incident is None:
            incident = Incident(self._layout, self._attempt, finding, sight, policy, others, sight.time)
            incident.host_index = self._host_index
        elif incident is known:
            incident.reopen(finding, sight, others)
        if not any(each is incident for each in self.incidents):
            self.incidents.append(incident)
        self._open[key], self._begun_by[key] = incident, subject
        return incident

    def take_acted(self, sight: Sight) -> list[Incident]:
        """Those of an earlier supervisor of which the ranks were to be killed; whether all of them were, nobody knows."""
        acted = self._inheritance.take_acted(sight)
        self.incidents += acted
        self._inheritance.expire()
        return acted

    def end_others(self, holding: Iterable[Finding]) -> list[Incident]:
        """All but those of the findings that hold; none of these is open any more."""
        current = {_key(finding) for finding in holding}
        over = [key for key in self._open if key not in current]
        ended = [self._open.pop(key) for key in over]
        self._ended |= {self._begun_by.pop(key): incident for key, incident in zip(over, ended, strict=True)}
        return ended

    def close(self) -> list[Incident]:
        """The attempt is over: what is open ends with it."""
        self._inheritance.close()
        return self.end_others(())


def _key(finding: Finding) -> Hashable:
    """What makes it the same incident while it is open: a stall stays one when another rank is suspected of it."""
    return finding.kind if finding.kind == "stall" else finding.subject
