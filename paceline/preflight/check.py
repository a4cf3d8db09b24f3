"""What a check says: ok, warn or fail, what was found, and the remedy.

fail(…) means: training certainly breaks here. Only that refuses a start. warn(…): it may be slow, or break later.

    Check(name="open files", status="warn", found="256 per process", remedy="ulimit -n 65536", values={"limit": 256})
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from paceline.errors import PreflightError, Problem

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status
    found: str
    remedy: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    """the same for a script, with units in the names"""


def ok(name: str, found: str, /, **values: Any) -> Check:
    return Check(name, "ok", found, "", values)


def warn(name: str, found: str, remedy: str, /, **values: Any) -> Check:
    return Check(name, "warn", found, remedy, values)


def fail(name: str, found: str, remedy: str, /, **values: Any) -> Check:
    return Check(name, "fail", found, remedy, values)


def from_problems(name: str, problems: Iterable[Problem]) -> list[Check]:
    """A failed check for each problem of an error that training would end with."""
    return [
        fail(name, f"{problem.what} ({problem.where})" if problem.where else problem.what, problem.do)
        for problem in problems
    ]


@dataclass(frozen=True)
class Report:
    """Everything that was checked, by family, and how long it took."""

    families: Mapping[str, list[Check]]
    seconds: float

    @property
    def checks(self) -> list[Check]:
        return [check for checks in self.families.values() for check in checks]

    def having(self, status: Status) -> list[Check]:
        return [check for check in self.checks if check.status == status]

    @property
    def status(self) -> Status:
        return "fail" if self.having("fail") else "warn" if self.having("warn") else "ok"

    def error(self) -> PreflightError | None:
        """The refusal that follows, with every remedy; None where nothing fails."""
        problems = [Problem(f"{check.name}: {check.found}", "preflight", check.remedy) for check in self.having("fail")]
        return PreflightError(problems=problems) if problems else None

    def to_record(self) -> dict[str, Any]:
        checks = [{"family": family} | asdict(check) for family, found in self.families.items() for check in found]
        return {"status": self.status, "seconds": round(self.seconds, 3), "checks": checks}
