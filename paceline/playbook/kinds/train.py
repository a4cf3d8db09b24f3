"""A phase that trains: `paceline train CONFIG key=value … --out DIR`; a killed one goes on from its newest checkpoint by itself."""

from __future__ import annotations

import math
import statistics
from typing import Any, ClassVar, Literal

from paceline.config.contradictions import Facts
from paceline.config.sections import key
from paceline.launch.placement import place_ranks
from paceline.launch.results import result_rows
from paceline.playbook.pace import WINDOW, read_pace, short
from paceline.playbook.phase import Scene, Successor, Words, Work, file_digest
from paceline.playbook.results import EVERY, Evidence, Outcome, Reports, Value
from paceline.recipes.job import load_job
from paceline.telemetry.ownership import LOOP_KILLED, OWNER_KILLED
from paceline.telemetry.reader import Run, read_run
from paceline.telemetry.tables import NOT_METRICS


class Train(Successor):
    """One training run."""

    reports: ClassVar[Reports] = Reports(
        {
            "first_loss": "of the first logged window",
            "final_loss": "of the last one",
            "samples_per_s": "median of the windows after the first, of the last attempt",
            "units_per_s": "the same in the recipe's unit",
            "step_ms_p50": "median of the windows'",
            "memory_gib": "the most of any window",
            "pace": "mean over the last `window` steps, in the recipe's units a second",
            "pace_std": "its deviation from row to row",
            "steps": "that were trained",
            "samples": "that were trained",
            "failures": "attempts that ended with an error; killed and stopped ones are none",
            **EVERY,
        },
        {
            "validation.": "the last evaluation, by the recipe's names; validation.objective is the one that decides",
            "test.": "the same on the test split",
            "best.": "the best evaluation of the deciding split",
            "baseline.": "of the trivial model, by split: baseline.test.objective",
        },
    )
    takes_settings: ClassVar[bool] = True
    trains: ClassVar[bool] = True

    kind: Literal["train"] = key(..., "It trains.")
    config: str | None = key(None, "Recipe or YAML file; null: the playbook's.")
    set: dict[str, Any] = key({}, "Fixed overrides.")
    use: Words = key([], "Whose winner to train with: P1.best, or a list of which the first one that ran counts.")

    window: int = key(WINDOW, "Steps at the end of the run over which `pace` is taken.", ge=2)

    def plan_work(self, scene: Scene) -> Work:
        place = scene.place("run")
        arguments = ["train", scene.config, *scene.overrides(), "--out", str(place)]
        identity = {"config": scene.config, "digest": file_digest(scene.config), "settings": dict(scene.settings)}
        return Work(arguments, place, {"kind": self.kind} | identity)

    def check(self, scene: Scene) -> None:
        job = load_job(scene.config, scene.overrides())
        placement = place_ranks(job.config.launch, job.origins["launch.gpus"])
        job.check(Facts(placement.world_size, placement.num_gpus))
        job.identity()  # reads the data, or says what is wrong with it

    def find_unfinished(self, work: Work) -> str | None:
        """`paceline stop` and stop.max_hours end a run with exit code 0, before its length."""
        run = read_run(work.place).run
        return f"the run was {run.state}: {run.reason}" if run.state != "finished" else None

    def read(self, work: Work) -> Outcome:
        run = read_run(work.place)
        evidence = [Evidence(*row) for row in result_rows(run)]
        results, file = read_results(run), short(run.layout.metrics)
        sources = {"failures": f"{short(run.layout.run)}, all attempts", "memory_gib": f"{file}, the most of all rows"}
        sources |= dict.fromkeys(("first_loss", "final_loss"), f"{file}, the row of that step")
        paces = ("samples_per_s", "units_per_s", "step_ms_p50")
        sources |= dict.fromkeys(paces, f"{file}, median of the rows after the first, of the last attempt")
        pace = read_pace(run, self.window)
        if pace is not None:
            results |= {"pace": pace.mean, "pace_std": pace.std}
            sources |= dict.fromkeys(("pace", "pace_std"), f"{file}, {pace.column}, {pace.window}")
            evidence.append(Evidence("pace", pace.shown, sources["pace"]))
        return Outcome(results, evidence, {"run": work.place}, sources)


def read_results(run: Run) -> dict[str, Value]:
    """The numbers of a run by the names that a gate uses."""
    results: dict[str, Value] = {"failures": count_failures(run)}
    if run.metrics:
        last = run.metrics[-1]
        results |= {"first_loss": run.metrics[0].get("loss"), "final_loss": last.get("loss"), "steps": last["step"]}
        results["samples"] = last.get("samples")
        windows = [row for row in run.metrics if row["attempt"] == last["attempt"]]
        for name in ("samples_per_s", "units_per_s", "step_ms_p50"):
            results[name] = _median([row.get(name) for row in (windows[1:] or windows)])
        results["memory_gib"] = max(_numbers([row.get("memory_gib") for row in run.metrics]), default=None)
    results |= _evaluations(run)
    return results


def count_failures(run: Run) -> int:
    """A playbook that was killed left an attempt without an end; that is no fault of the training."""
    return sum(
        attempt.state == "failed" and attempt.reason not in (OWNER_KILLED, LOOP_KILLED) for attempt in run.run.attempts
    )


def _evaluations(run: Run) -> dict[str, Value]:
    plans = run.events_of("plan")
    objective = (plans[-1].get("objective") or {}) if plans else {}
    decides, found = str(objective.get("metric", "")), dict[str, Value]()
    for row in run.validation:  # in the order of their steps: the last one of a split stays
        metrics = {name: value for name, value in row.items() if name not in NOT_METRICS}
        found |= _named(f"{row['split']}.", metrics, decides)
    deciding = [row for row in run.validation if row["split"] == run.validation[0]["split"]] if run.validation else []
    scored = [row for row in deciding if _numbers([row.get(decides)])]
    if scored:
        choose = max if objective.get("direction") == "max" else min
        best = choose(scored, key=lambda row: row[decides])
        found |= _named("best.", {name: value for name, value in best.items() if name not in NOT_METRICS}, decides)
    for event in run.events_of("baseline"):
        if isinstance(event.get("metrics"), dict):
            found |= _named(f"baseline.{event.get('split')}.", event["metrics"], decides)
    return found


def _named(prefix: str, metrics: dict[str, Any], decides: str) -> dict[str, Value]:
    named = {f"{prefix}{name}": value for name, value in metrics.items()}
    return named | ({f"{prefix}objective": metrics[decides]} if decides in metrics else {})


def _numbers(values: list[Any]) -> list[float]:
    return [value for value in values if isinstance(value, int | float) and math.isfinite(value)]


def _median(values: list[Any]) -> float | None:
    numbers = _numbers(values)
    return statistics.median(numbers) if numbers else None
