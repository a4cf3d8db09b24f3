"""A phase that compares configurations: `paceline sweep PLAN --out DIR`; what is finished in its ledger is not run again.

The keys of a sweep's plan stand beside those of the phase:

    kind: sweep
    axes: {model.blocks: [1, 2]}
    steps: 300
    use: A.top2          # or: B.best, to vary the winner of B
    min_speed_up: auto
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import Field

from paceline.config.sections import Bool, key
from paceline.errors import ConfigError, PacelineError
from paceline.playbook.acceptance import choose_speed_up
from paceline.playbook.phase import Scene, Successor, Words, Work, file_digest
from paceline.playbook.results import EVERY, Evidence, Outcome, Reports, Value
from paceline.playbook.swept import PACE, SpeedUp, Swept, read_swept
from paceline.reports.amounts import counted
from paceline.sweep.matrix import build_matrix
from paceline.sweep.plan import THROUGHPUT, PlanConfig, load_plan

PLAN_KEYS = tuple(name for name in PlanConfig.model_fields if name not in ("recipe", "set"))
IGNORES = dict.fromkeys(("train.max_steps", "train.epochs"), "its `steps` say how long a trial is")
SWEPT = {
    "samples_per_s": "of the winner",
    "baseline.samples_per_s": "of the baseline",
    "step_ms_p50": "of the winner",
    "memory_gib": "of the winner",
    "speed_up": "of the winner over the baseline, as the sweep fitted it; by the means where its objective is a metric",
    "speed_up_low": "the low end of its interval, at the sweep's confidence; not measured where the objective is a metric",
    "metric": "the objective of the winner, where it is a validation metric",
    "baseline.metric": "the same of the baseline",
    "winner": "its name",
    "is_decided": "whether it is the winner for certain; false: it only leads",
    "is_tied": "whether another case is as good",
    "failures": "trials that failed or took too long; one that ran out of memory has a verdict instead",
    "num_cases": "in the matrix",
    "num_trials": "that were run",
    "device_s": "device-seconds, start-ups included",
    **EVERY,
}
SWEPT_KINDS: dict[str, type] = {"winner": str, "is_decided": bool, "is_tied": bool}


class Sweep(Successor):
    """One sweep, and its winner."""

    reports: ClassVar[Reports] = Reports(SWEPT, kinds=SWEPT_KINDS)
    takes_settings: ClassVar[bool] = True
    plan_keys: ClassVar[tuple[str, ...]] = PLAN_KEYS
    ignores: ClassVar[Mapping[str, str]] = IGNORES

    kind: Literal["sweep"] = key(..., "It sweeps.")
    config: str | None = key(None, "Recipe or YAML file; null: the playbook's.")
    set: dict[str, Any] = key({}, "Fixed overrides.")
    use: Words = key([], "B.best: the winner's values are fixed here; A.top2: its two best cases are run again.")
    plan: dict[str, Any] = key({}, "The sweep's own keys; written beside the phase's.")
    best: str | None = key(None, "A best.yaml to take for the winner; nothing is run then.")
    retry_failed: Bool = key(False, "Run trials again that failed in an earlier start.")
    min_speed_up: Literal["auto"] | Annotated[float, Field(ge=-1)] | None = key(
        None, "The winner must be faster than the baseline by this share; auto: by compute capability."
    )

    def wins_by(self) -> tuple[str, ...]:
        return plan_varies(self.plan)

    def silent(self) -> Mapping[str, str]:
        return swept_silent(self.plan)

    def plan_work(self, scene: Scene) -> Work:
        return sweep_work("sweep", build_plan(self.plan, scene), scene, self.retry_failed)

    def check(self, scene: Scene) -> None:
        check_plan(build_plan(self.plan, scene))

    def read(self, work: Work) -> Outcome:
        swept = read_swept(work.place)
        found = swept.speed_up(swept.winner, swept.baseline)
        return Outcome(swept_results(swept), swept_evidence(swept, found), swept.links)

    def criteria(self, results: Mapping[str, Any]) -> list[tuple[str, str]]:
        return speed_up_criteria(self.min_speed_up, self.plan)


def swept_silent(plan: Mapping[str, Any]) -> dict[str, str]:
    """What a sweep by this objective has no number for."""
    objective = plan.get("objective", THROUGHPUT)
    if objective == THROUGHPUT:
        names = ("metric", "baseline.metric", "a.metric", "b.metric")
        return dict.fromkeys(names, "set objective: to a validation metric")
    return (
        {}
        if objective in PACE
        else {"speed_up_low": f"write speed_up (objective={objective} has no interval of the pace)"}
    )


def plan_varies(plan: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys that the cases of a plan differ in."""
    return tuple(dict.fromkeys([*plan.get("axes", {}), *(name for case in plan.get("cases", ()) for name in case)]))


def build_plan(plan: Mapping[str, Any], scene: Scene) -> dict[str, Any]:
    """The plan as `paceline sweep` reads it."""
    built: dict[str, Any] = {"recipe": scene.config}
    varied = dict(plan)
    if scene.cases:
        varied["cases"] = [dict(case) for case in scene.cases]
        if scene.baseline is not None:
            varied.setdefault("baseline", dict(scene.baseline))
    # What is varied here is not fixed by the winner of an earlier phase.
    free = {name for name in plan_varies(varied) if name in scene.used}
    built["set"] = {name: value for name, value in scene.settings.items() if name not in free}
    return built | varied


def check_plan(plan: Mapping[str, Any]) -> None:
    """Everything that `paceline sweep` would refuse of the plan itself, every case's configuration included."""
    with tempfile.TemporaryDirectory(prefix="paceline-plan-") as directory:
        file = Path(directory) / "plan.yaml"
        file.write_text(_text(plan), encoding="utf-8")
        try:
            build_matrix(load_plan(file))
        except PacelineError as error:
            # The file that it names is ours, and gone by then: the phase is where it was said.
            problems = [
                dataclasses.replace(each, where=each.where.replace(f"{directory}/", "")) for each in error.problems
            ]
            raise ConfigError(problems=problems) from None


def _text(plan: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(dict(plan), sort_keys=False, allow_unicode=True, default_flow_style=None, width=120))


def sweep_work(kind: str, plan: Mapping[str, Any], scene: Scene, retry_failed: bool) -> Work:
    file = scene.root / "plan.yaml"
    # One directory whatever the plan: the ledger knows which trials are still good, and runs only what is new. It does not
    # know hosts: for it a trial of another node of the same kind is still good.
    place = scene.root / (f"sweep-{scene.moves + 1}" if scene.moves else "sweep")
    retry = ["--retry-failed"] if retry_failed else []
    identity = {"kind": kind, "plan": dict(plan), "digest": file_digest(scene.config), "retry_failed": retry_failed}
    return Work(["sweep", str(file), "--out", str(place), *retry], place, identity, {file: _text(plan)})


def swept_results(swept: Swept) -> dict[str, Value]:
    winner, baseline = swept.winner, swept.baseline
    speed_up = swept.speed_up(winner, baseline)
    return {
        "samples_per_s": winner.samples_per_s,
        "baseline.samples_per_s": baseline.samples_per_s if baseline else None,
        "step_ms_p50": winner.step_ms_p50,
        "memory_gib": winner.memory_gib,
        "speed_up": speed_up.share,
        "speed_up_low": speed_up.low,
        "metric": winner.metric,
        "baseline.metric": baseline.metric if baseline else None,
        "winner": winner.name,
        "is_decided": swept.is_decided,
        "is_tied": any(case.verdict == "tied" for case in swept.cases),
        "failures": swept.num_failed,
        "num_cases": len(swept.cases),
        "num_trials": swept.num_trials,
        "device_s": swept.device_s,
    }


def swept_evidence(swept: Swept, speed_up: SpeedUp) -> list[Evidence]:
    leads = "winner" if swept.is_decided else "leads"
    rows = [Evidence(leads, swept.winner.name, swept.sentence or swept.record.name)]
    rows += [
        Evidence(f"{case.name}{' (baseline)' if case is swept.baseline else ''}", case.shown, case.verdict)
        for case in swept.cases
    ]
    if speed_up.share is not None:
        least = f", at least {speed_up.low:+.1%}" if speed_up.low is not None else ", by the means"
        rows.append(Evidence("speed-up", f"{speed_up.share:+.1%}{least}", swept.record.name))
    cost = f"{counted(swept.num_trials, 'trial')}, {swept.num_failed} failed, {swept.device_s:,.0f} device-seconds"
    return [*rows, Evidence("cost", cost, swept.record.name)]


def speed_up_criteria(wanted: float | str | None, plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The fitted speed-up is what was asked for, and its interval leaves no doubt that there is one.

    That the low end alone reaches the share would refuse what is worth having: with two repeats it lies several times the noise lower.
    """
    if wanted is None:
        return []
    number, why = choose_speed_up(wanted)
    objective = plan.get("objective", THROUGHPUT)
    if objective not in PACE:
        return [
            (
                f"speed_up >= {number:g}",
                f"{why}; by the means: a sweep by {objective} has no interval of its pace",
            )
        ]
    certain = "the low end of the interval; more repeats make it narrower"
    return [(f"speed_up >= {number:g}", why), (f"speed_up_low >= {min(number, 0.0):g}", certain)]
