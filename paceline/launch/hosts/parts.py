"""What was heard of the other hosts' parts of one attempt, and how it adds to what the leader saw itself.

Parts(reports={1: Report(…)}, lost=[Lost("host b (10.9.0.2) with rank 1", "it closed the connection")]).add_to(evidence)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from paceline.launch.hosts.message import Report
from paceline.launch.process import RankExit
from paceline.launch.verdict import Evidence


@dataclass(frozen=True)
class Lost:
    """A host that went away with its ranks."""

    index: int
    who: str
    why: str

    def __str__(self) -> str:
        return f"{self.who} was lost: {self.why}"


@dataclass
class Parts:
    """By the indices of the hosts."""

    reports: dict[int, Report] = field(default_factory=dict)
    lost: list[Lost] = field(default_factory=list)

    @property
    def has_left(self) -> bool:
        """Whether a process could not be ended on one of them."""
        return any(report.left for report in self.reports.values())

    def add_to(self, mine: Evidence) -> Evidence:
        """All evidence together."""
        reports = list(self.reports.values())
        if not reports and not self.lost:
            return mine
        # Where our own agent ended well all ranks had come to the end together, whatever an agent said afterwards; and one that we
        # killed because another host failed has less to say than that host's.
        failed = [report.agent_exit for report in reports if report.agent_exit]
        agent_exit = failed[0] if mine.agent_exit and failed else mine.agent_exit
        return replace(
            mine,
            agent_exit=agent_exit,
            failures=[*mine.failures, *(each for report in reports for each in report.failures)],
            exits=[*mine.exits, *(RankExit(*each) for report in reports for each in report.exits)],
            incidents=[*mine.incidents, *(each for report in reports for each in report.incidents)],
            tail=[*mine.tail, *(line for report in reports if report.agent_exit != 0 for line in report.tail)],
            lost=[str(each) for each in self.lost],
        )
