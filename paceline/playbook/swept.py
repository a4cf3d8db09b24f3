"""What a sweep came to, read from its directory: sweep.json, and best.yaml for the winner's values.

swept = read_swept(Path("runs/p0-p3/P1/sweep"))
swept.winner.name, swept.top(2), swept.num_failed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from paceline.errors import UsageError
from paceline.files import read_json
from paceline.sweep.plan import STEP_TIME, THROUGHPUT
from paceline.telemetry.amount import show_amount
from paceline.telemetry.layout import RunLayout

RECORD, BEST = "sweep.json", "best.yaml"
_FAILED = ("failed", "timeout")
CANNOT_WIN = ("does not fit", "diverges", "failed")
"""verdicts of cases that are out, however fast they were"""
PACE = (THROUGHPUT, STEP_TIME)
"""objectives whose fit is a fit of the pace"""


class SpeedUp(NamedTuple):
    """How much faster one case is than another; 0.08 is 8 %."""

    share: float | None = None
    low: float | None = None
    """the low end of its interval, at the sweep's confidence; None: the sweep was not about the pace"""


@dataclass(frozen=True)
class Case:
    """One case of the matrix, with what came of it."""

    name: str
    values: Mapping[str, Any]
    verdict: str
    samples_per_s: float | None = None
    metric: float | None = None
    step_ms_p50: float | None = None
    memory_gib: float | None = None
    ratio: float | None = None
    """the objective against the leader's as the sweep fitted it, 0.97 is 3 % worse; with its interval"""
    ratio_low: float | None = None
    ratio_high: float | None = None

    @property
    def shown(self) -> str:
        """The number that decided, as a person reads it."""
        if self.metric is not None:
            return f"{self.metric:.4f}"
        return f"{show_amount(self.samples_per_s)} samples/s" if self.samples_per_s is not None else "no number"


@dataclass(frozen=True)
class Swept:
    """A sweep's results."""

    record: Path
    cases: Sequence[Case]
    """in the order of their rank"""
    winner: Case
    """or who leads, where nothing is certain"""
    baseline: Case | None
    is_decided: bool
    sentence: str
    """the result, in the sweep's own words"""
    statuses: Sequence[str] = ()
    """of the trials that came to an end"""
    device_s: float = 0.0
    objective: str = THROUGHPUT

    @property
    def links(self) -> dict[str, Path]:
        """What later phases and the page look for."""
        root = self.record.parent
        links = {"best": root / BEST, "sweep": root, "report": RunLayout(root).report_page}
        return {word: path for word, path in links.items() if path.exists()}

    @property
    def num_trials(self) -> int:
        return len(self.statuses)

    @property
    def num_failed(self) -> int:
        return sum(status in _FAILED for status in self.statuses)

    def top(self, count: int) -> list[Case]:
        """The leading cases; never those without a number, nor those that cannot win: fast and diverging is not leading."""
        able = [case for case in self.cases if case.verdict not in CANNOT_WIN]
        return [case for case in able if case.samples_per_s is not None or case.metric is not None][:count]

    def speed_up(self, case: Case | None, over: Case | None) -> SpeedUp:
        """By the sweep's own fit, which compares within rounds and knows how certain that is; a ratio of means does neither.

        By the means, and without an interval, where the sweep was about a metric. None for a case that is out.
        """
        if case is None or over is None or case.verdict in CANNOT_WIN:
            return SpeedUp()
        if case is over:
            return SpeedUp(0.0, 0.0)
        if self.objective in PACE and case.ratio and over.ratio and case.ratio_low and over.ratio_high:
            # Both against the leader, who is mostly one of the two and has no interval: then this is the fit's own.
            return SpeedUp(case.ratio / over.ratio - 1, case.ratio_low / over.ratio_high - 1)
        return SpeedUp(
            case.samples_per_s / over.samples_per_s - 1 if case.samples_per_s and over.samples_per_s else None
        )


def read_swept(directory: Path) -> Swept:
    """The sweep in that directory; UsageError where it has no winner, or its record cannot be read."""
    record = directory / RECORD
    do = "run the phase again: the same command goes on"
    try:
        content = read_json(record)
        cases = [_case(each) for each in sorted(content["cases"], key=_rank)]
        by_name = {case.name: case for case in cases}
        winner = by_name.get(content["winner"] or content["best"] or "")
        baseline = by_name.get(content["baseline"] or "")
        statuses = tuple(str(trial["status"]) for trial in content["trials"] if trial["is_counted"])
        is_decided, sentence = bool(content["is_decided"]), str(content["sentence"])
        device_s, objective = float(content["costs"]["device_s"] or 0.0), str(content["objective"]["name"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"the sweep's record cannot be read ({error})", str(record), do) from error
    if winner is None:
        raise UsageError("the sweep has no winner: no case came to an end", str(record), "look at its summary.md")
    return Swept(record, cases, winner, baseline, is_decided, sentence, statuses, device_s, objective)


def _rank(case: Mapping[str, Any]) -> tuple[bool, int]:
    rank = case.get("rank")
    return rank is None, rank or 0


def _case(content: Mapping[str, Any]) -> Case:
    return Case(
        str(content["name"]),
        dict(content["values"]),
        str(content["verdict"]),
        content.get("samples_per_s"),
        content.get("metric"),
        content.get("step_ms_p50"),
        content.get("memory_gib"),
        content.get("ratio"),
        content.get("ratio_low"),
        content.get("ratio_high"),
    )
