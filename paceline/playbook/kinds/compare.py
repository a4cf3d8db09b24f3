"""A phase that compares two configurations, A against B: a sweep of two cases, run in turn, every one as often as the other.

kind: compare
a: {train.compile.enabled: false}
b: {train.compile.enabled: true}
repeats: 3
gate: [speed_up >= 0.05]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from paceline.config.sections import Bool, key
from paceline.playbook.kinds.sweep import (
    IGNORES,
    PLAN_KEYS,
    SWEPT,
    SWEPT_KINDS,
    build_plan,
    check_plan,
    plan_varies,
    speed_up_criteria,
    sweep_work,
    swept_evidence,
    swept_results,
    swept_silent,
)
from paceline.playbook.phase import Scene, Successor, Words, Work
from paceline.playbook.results import Outcome, Reports, Value
from paceline.playbook.swept import Case, read_swept

_NUMBERS = ("samples_per_s", "step_ms_p50", "memory_gib", "metric")


class Compare(Successor):
    """A against B; A is the baseline."""

    reports: ClassVar[Reports] = Reports(
        {
            **SWEPT,
            **{f"{arm}.{name}": f"of {arm}" for arm in ("a", "b") for name in _NUMBERS},
            "speed_up": "of b over a",
            "speed_up_low": "of b over a: the low end of its interval",
        },
        kinds=SWEPT_KINDS,
    )
    takes_settings: ClassVar[bool] = True
    plan_keys: ClassVar[tuple[str, ...]] = tuple(
        name for name in PLAN_KEYS if name not in ("axes", "cases", "exclude", "baseline", "racing")
    )
    ignores: ClassVar[Mapping[str, str]] = IGNORES

    kind: Literal["compare"] = key(..., "It compares.")
    config: str | None = key(None, "Recipe or YAML file; null: the playbook's.")
    set: dict[str, Any] = key({}, "Fixed overrides, of both.")
    use: Words = key([], "B.best: the winner's values are fixed here.")
    a: dict[str, Any] = key(..., "The overrides of A, the baseline.")
    b: dict[str, Any] = key(..., "The overrides of B.")
    plan: dict[str, Any] = key({}, "The sweep's own keys; written beside the phase's.")
    best: str | None = key(None, "A best.yaml to take for the winner; nothing is run then.")
    retry_failed: Bool = key(False, "Run trials again that failed in an earlier start.")
    min_speed_up: Literal["auto"] | Annotated[float, Field(ge=-1)] | None = key(
        None, "B must be faster than A by this share; auto: by compute capability."
    )

    def wins_by(self) -> tuple[str, ...]:
        return plan_varies({"cases": [self.a, self.b]})

    def silent(self) -> Mapping[str, str]:
        return swept_silent(self.plan)

    def plan_work(self, scene: Scene) -> Work:
        return sweep_work("compare", self._plan(scene), scene, self.retry_failed)

    def check(self, scene: Scene) -> None:
        check_plan(self._plan(scene))

    def _plan(self, scene: Scene) -> dict[str, Any]:
        arms = {"cases": [self.a, self.b], "baseline": self.a, "racing": False}
        return build_plan({"repeats": 3} | self.plan | arms, scene)

    def read(self, work: Work) -> Outcome:
        swept = read_swept(work.place)
        arms = {arm: _find(swept.cases, values) for arm, values in (("a", self.a), ("b", self.b))}
        results: dict[str, Value] = swept_results(swept)
        for arm, case in arms.items():
            results |= {f"{arm}.{name}": getattr(case, name) if case else None for name in _NUMBERS}
        found = swept.speed_up(arms["b"], arms["a"])
        results |= {"speed_up": found.share, "speed_up_low": found.low}
        return Outcome(results, swept_evidence(swept, found), swept.links)

    def criteria(self, results: Mapping[str, Any]) -> list[tuple[str, str]]:
        return speed_up_criteria(self.min_speed_up, self.plan)


def _find(cases: Any, values: Mapping[str, Any]) -> Case | None:
    return next((case for case in cases if all(case.values.get(name) == value for name, value in values.items())), None)
