"""A phase that tries each case once and takes the one with the highest mean pace over its last steps, of those as fast the steadier one.

    kind: pick
    axes: {parallel.bucket_mb: [25, 50, 100]}
    steps: 200
    window: 50

The trials are those of `paceline sweep`. Where a sweep asks what is certain, this one says what was seen: means and deviations over a
stated window, and a winner by them. Cases whose means differ by less than `margin` are as fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from paceline.config.sections import Bool, key
from paceline.files import read_json
from paceline.playbook.kinds.sweep import IGNORES, PLAN_KEYS, build_plan, check_plan, plan_varies, sweep_work
from paceline.playbook.pace import WINDOW, Pace, read_pace, short
from paceline.playbook.phase import Scene, Successor, Words, Work
from paceline.playbook.results import EVERY, Evidence, Grid, Outcome, Reports, Value
from paceline.playbook.swept import CANNOT_WIN, RECORD, read_swept
from paceline.reports.amounts import counted
from paceline.telemetry.amount import show_amount
from paceline.telemetry.reader import read_run

_FIXED = {"repeats": 1, "racing": False}


@dataclass(frozen=True)
class Tried:
    """A case, its verdict in the sweep, and the pace of its trial."""

    name: str
    verdict: str
    pace: Pace | None
    root: Path

    @property
    def can_win(self) -> bool:
        return self.pace is not None and self.verdict not in CANNOT_WIN


class Pick(Successor):
    """Some cases, and which one is taken."""

    reports: ClassVar[Reports] = Reports(
        {
            "pace": "mean of the winner over the window, in the recipe's units a second",
            "pace_std": "its deviation",
            "slowest_pace": "the lowest mean of a case that could win",
            "winner": "its name",
            "failures": "cases without a result: failed, out of memory, or diverged",
            "num_cases": "that were tried",
            **EVERY,
        },
        kinds={"winner": str},
    )
    takes_settings: ClassVar[bool] = True
    plan_keys: ClassVar[tuple[str, ...]] = tuple(name for name in PLAN_KEYS if name not in (*_FIXED, "window"))
    ignores: ClassVar[Mapping[str, str]] = IGNORES

    kind: Literal["pick"] = key(..., "It picks.")
    config: str | None = key(None, "Recipe or YAML file; null: the playbook's.")
    set: dict[str, Any] = key({}, "Fixed overrides.")
    use: Words = key([], "B.best: the winner's values are fixed here.")
    plan: dict[str, Any] = key({}, "The sweep's own keys; written beside the phase's.")
    best: str | None = key(None, "A best.yaml to take for the winner; nothing is run then.")
    retry_failed: Bool = key(False, "Run trials again that failed in an earlier start.")
    window: int = key(WINDOW, "Steps at the end of a trial that count.", ge=2)

    def wins_by(self) -> tuple[str, ...]:
        return plan_varies(self.plan)

    def plan_work(self, scene: Scene) -> Work:
        return sweep_work("pick", self._plan(scene), scene, self.retry_failed)

    def check(self, scene: Scene) -> None:
        check_plan(self._plan(scene))

    def _plan(self, scene: Scene) -> dict[str, Any]:
        return build_plan(self.plan | _FIXED, scene)

    def read(self, work: Work) -> Outcome:
        tried = _read_tried(work.place, self.window)
        margin = float(read_json(work.place / RECORD)["plan"]["margin"])
        winner, why = choose(tried, margin)
        slowest = min((each for each in tried if each.can_win), key=_mean, default=None)
        results: dict[str, Value] = {"num_cases": len(tried), "failures": sum(not each.can_win for each in tried)}
        rows = [_row(each, each is winner) for each in tried]
        table = Grid(
            f"at most the last {self.window} steps of each case",
            ("case", "mean", "deviation", "unit", "window", ""),
            rows,
        )
        links, record = {"sweep": work.place}, short(work.place / RECORD)
        sources = dict.fromkeys(results, f"{record}, {counted(len(tried), 'trial')}")
        if winner is None or winner.pace is None:
            return Outcome(results, [Evidence("winner", "none", why)], links, sources, tables=[table])
        pace, source = winner.pace, _source(winner)
        assert slowest is not None
        results |= {"pace": pace.mean, "pace_std": pace.std, "slowest_pace": _mean(slowest), "winner": winner.name}
        evidence = [Evidence("winner", winner.name, why), Evidence("its pace", pace.shown, source)]
        links["best"] = winner.root / "config.yaml"
        sources |= dict.fromkeys(("pace", "pace_std"), source)
        sources |= {
            "slowest_pace": _source(slowest),
            "winner": f"{record}, at most the last {self.window} steps of each case: {why}",
        }
        return Outcome(results, evidence, links, sources, tables=[table])


def choose(tried: Sequence[Tried], margin: float) -> tuple[Tried | None, str]:
    """The highest mean; of those within the margin of it, the smallest deviation; with the reason."""
    able = [(each, each.pace) for each in tried if each.can_win and each.pace is not None]
    if not able:
        return None, "no case came to an end with a pace"
    if len(able) == 1:
        return able[0][0], "the only case that came to an end with a pace"
    top, best = max(able, key=lambda pair: pair[1].mean)
    close = [(each, pace) for each, pace in able if pace.mean >= best.mean * (1 - margin)]
    if len(close) == 1:
        return top, f"the highest mean, by more than {margin:.1%}"
    steady = [(pace.std, each) for each, pace in close if pace.std is not None]
    if len(steady) < len(close):
        return top, f"the highest mean, by less than {margin:.1%}: the window has one row, and no deviation to go by"
    winner = min(steady, key=lambda pair: pair[0])[1]
    return winner, f"the smallest deviation of the {len(close)} whose means differ by less than {margin:.1%}"


def _mean(tried: Tried) -> float:
    return tried.pace.mean if tried.pace else 0.0


def _source(tried: Tried) -> str:
    assert tried.pace is not None
    return f"{short(tried.root / 'metrics.csv')}, {tried.pace.column}, {tried.pace.window}"


def _row(tried: Tried, is_winner: bool) -> list[str]:
    word = "winner" if is_winner else "" if tried.can_win else tried.verdict
    if tried.pace is None:
        return [tried.name, "", "", "", "no rate", word]
    pace = tried.pace
    return [tried.name, show_amount(pace.mean), show_amount(pace.std), pace.unit, pace.window, word]


def _read_tried(place: Path, window: int) -> list[Tried]:
    swept = read_swept(place)
    verdicts = {case.name: case.verdict for case in swept.cases}
    found = []
    for trial in read_json(swept.record)["trials"]:
        if trial["is_counted"]:
            root = place / trial["directory"]
            pace = read_pace(read_run(root), window) if trial["status"] == "ok" else None
            found.append(Tried(str(trial["case"]), verdicts.get(trial["case"], trial["status"]), pace, root))
    return found
