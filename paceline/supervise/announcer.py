"""What a supervisor says, and how often: events in the run directory, an incident's own files, a line to whoever started it.

    announcer = Announcer(layout, attempt=1, tell=print)
    announcer.note(finding, beside=others)      # no emergency: an event, once in a while
    if announcer.is_due(incident): announcer.publish(incident)

A disk may be full, or gone: nothing of this ends the supervision.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from paceline.diagnose.finding import Finding
from paceline.supervise.incident import Incident
from paceline.telemetry.events import EventLog
from paceline.telemetry.layout import RunLayout

_AGAIN_S = 60.0
"""what comes and goes is told once in this time"""
_OFTEN = 5
"""so often an incident that comes and goes is told at once"""

Tell = Callable[[Mapping[str, Any]], None]


class Announcer:
    """Of one attempt."""

    def __init__(self, layout: RunLayout, attempt: int, tell: Tell | None) -> None:
        self._layout = layout
        self._attempt = attempt
        self._tell = tell or (lambda record: None)
        self._told: dict[tuple[str, int | None], float] = {}
        self._published: dict[str, float] = {}
        """by the incident's name: stacks may name another rank than the finding did"""

    def note(self, finding: Finding, beside: Sequence[Finding]) -> None:
        """`beside`: all that holds now."""
        now = time.monotonic()
        if finding.kind == "memory_growth" and finding.rank is None:
            named = [*self._told, *(each.subject for each in beside if each is not finding)]
            if any(kind == finding.kind for kind, _ in named):
                return  # a table's column is that of a process, which is told with its rank
        last = self._told.get(finding.subject)
        self._told[finding.subject] = now
        if last is None or now - last > _AGAIN_S:
            self.write_event("finding", finding=finding.to_record(), incident=None)

    def is_due(self, incident: Incident) -> bool:
        """Whether it may be told: stacks are a signal to every rank, and an event a line for ever."""
        last = self._published.get(incident.name)
        return incident.times <= _OFTEN or last is None or time.monotonic() - last > _AGAIN_S

    def publish(self, incident: Incident) -> None:
        """As it is now, to everybody."""
        incident.is_told = True
        self._published[incident.name] = time.monotonic()
        self.write(incident)
        record = {
            "finding": incident.finding.to_record(),
            "incident": incident.name,
            "place": incident.place,
            "policy": incident.policy,
            "action": incident.action,
            "times": incident.times,
        }
        self._tell(record)
        self.write_event("incident", **record)

    def write(self, incident: Incident) -> None:
        with said("an incident cannot be written"):
            incident.write()

    def write_event(self, kind: str, **fields: Any) -> None:
        with said("an event cannot be written"):
            events = EventLog(self._layout.events, "supervisor", self._attempt)
            events.write(kind, **fields)
            events.close()


@contextlib.contextmanager
def said(what: str) -> Iterator[None]:
    """A full disk must not end the supervision: it is said in the supervisor's own log, if that can be written."""
    try:
        yield
    except OSError as error:
        with contextlib.suppress(OSError):
            print(f"{what}: {error}", file=sys.stderr, flush=True)
