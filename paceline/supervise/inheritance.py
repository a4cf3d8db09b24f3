"""Incidents that earlier supervisors left: taken on by the next one of the same attempt, closed, if open, by that of a later attempt.

inheritance = Inheritance(layout, attempt=1, key_of=key)
inheritance.take(key(finding), sight)               -> the same Incident, with its directory; None: nobody left it open
inheritance.take_ended(finding.subject, sight)      -> one that had ended, and may be reopened
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.diagnose.finding import Finding, finding_from_record
from paceline.diagnose.sight import Sight
from paceline.files import read_json, write_json
from paceline.supervise.incident import VERSION, Incident
from paceline.telemetry.layout import RunLayout

_WAIT_S = 10.0
"""in which an incident is found again, if it still holds"""
_KEPT = ("others", "ranks", "stacks")


@dataclass(frozen=True)
class _Left:
    """One of them."""

    directory: Path
    record: Mapping[str, Any]
    finding: Finding

    def take_on(self, layout: RunLayout, sight: Sight) -> Incident:
        record = self.record
        noticed, policy = float(record["noticed"]), str(record["policy"])
        incident = Incident(layout, int(record["attempt"]), self.finding, sight, policy, (), noticed)
        incident.directory, incident.action = self.directory, str(record["action"])
        has_stacks = record["stacks"]["taken_s"] is not None
        incident.kept = {name: record[name] for name in _KEPT if name != "stacks" or has_stacks}
        incident.is_told = has_stacks
        incident.times, incident.returned = record.get("times", 1), record.get("returned")
        incident.host_index = record.get("host_index", 0)
        return incident

    def close(self) -> None:
        # Where nothing can be written it stays open, as it would without us.
        with contextlib.suppress(OSError):
            write_json(self.directory / "report.json", dict(self.record) | {"ended": time.time()})


class Inheritance:
    """What one supervisor finds of those before it."""

    def __init__(
        self, layout: RunLayout, attempt: int, key_of: Callable[[Finding], Hashable], host_index: int = 0
    ) -> None:
        """`key_of`: what makes a finding the same incident. `host_index`: of whose supervisors; what another host's left open of an earlier
        attempt is closed by that of host 0, which is always there."""
        self._layout = layout
        self._until = time.monotonic() + _WAIT_S
        self._left: dict[Hashable, _Left] = {}
        self._ended: dict[tuple[str, int | None], _Left] = {}
        for left in _find(layout):
            is_own = left.record.get("host_index", 0) == host_index  # older ones are of one host
            if not is_own and (host_index != 0 or left.record["attempt"] >= attempt):
                continue
            key = key_of(left.finding)
            if left.record["ended"] is not None:
                if left.record["attempt"] == attempt:
                    self._ended[left.finding.subject] = left
            elif left.record["attempt"] == attempt and key not in self._left:
                self._left[key] = left
            elif left.record["attempt"] <= attempt:
                left.close()

    def take(self, key: Hashable, sight: Sight) -> Incident | None:
        left = self._left.pop(key, None)
        return left.take_on(self._layout, sight) if left is not None else None

    def take_ended(self, subject: tuple[str, int | None], sight: Sight) -> Incident | None:
        left = self._ended.pop(subject, None)
        return left.take_on(self._layout, sight) if left is not None else None

    def take_acted(self, sight: Sight) -> list[Incident]:
        """Those of which the ranks were to be killed; whether all of them were, nobody knows."""
        acted = [key for key, left in self._left.items() if left.record["action"] in ("killed", "restarted")]
        return [self._left.pop(key).take_on(self._layout, sight) for key in acted]

    def expire(self) -> None:
        """What was not found again for a while does not hold any more."""
        if self._left and time.monotonic() > self._until:
            self.close()

    def close(self) -> None:
        for left in self._left.values():
            left.close()
        self._left.clear()


def _find(layout: RunLayout) -> list[_Left]:
    """Every incident of the run, the oldest first; what is damaged is passed over."""
    found = []
    for path in sorted(layout.incidents.glob("*/report.json")):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            record = read_json(path)
            finding = finding_from_record(record["finding"])
            if record["v"] == VERSION and finding is not None and _is_whole(record):
                found.append(_Left(path.parent, record, finding))
    return found


def _is_whole(record: Mapping[str, Any]) -> bool:
    counts = (record["attempt"], record.get("times", 1))  # older ones were not counted
    moments = [record["noticed"], *(record[name] for name in ("ended", "returned") if record.get(name) is not None)]
    return (
        all(name in record for name in ("policy", "action", "ended", *_KEPT))
        and "taken_s" in record["stacks"]
        and all(isinstance(each, int) for each in counts)
        and all(isinstance(each, int | float) for each in moments)
    )
