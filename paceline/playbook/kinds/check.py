"""A phase that trains nothing: a gate over what earlier phases found, and, with `of`, `paceline evaluate` of an earlier run.

kind: check
of: P2
gate: [equal, test.objective > 2 * baseline.test.objective]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from paceline.config.sections import key
from paceline.files import read_json
from paceline.playbook.phase import UNKNOWN, Phase, Scene, Work
from paceline.playbook.results import EVERY, Evidence, Outcome, Reports, Value


class Check(Phase):
    """Whether what was found stands."""

    reports: ClassVar[Reports] = Reports(
        {
            "equal": "with `of`: every metric that the run logged at that step came out with the same digits",
            "num_compared": "with `of`: metrics that the run had logged",
            "num_different": "with `of`: of those, how many came out otherwise",
            **EVERY,
        },
        {"validation.": "with `of`: metrics, evaluated again", "test.": "with `of`: metrics, evaluated again"},
        {"equal": bool},
    )

    kind: Literal["check"] = key(..., "It checks.")
    of: str | None = key(None, "The training phase whose best model is evaluated again; null: nothing is run.")

    def trained(self) -> dict[str, str]:
        return {"of": self.of} if self.of else {}

    def silent(self) -> Mapping[str, str]:
        names = ("equal", "num_compared", "num_different", *self.reports.prefixes)
        return {} if self.of else dict.fromkeys(names, "say `of:` and a phase that trains")

    def plan_work(self, scene: Scene) -> Work:
        answer = scene.place("evaluation.json")
        if self.of is None:
            return Work([], answer, {"kind": "check"})
        run = scene.earlier.get(self.of, {}).get("run")
        shown = str(run) if run else UNKNOWN.format(f"{self.of}.run")
        identity = {"kind": "check", "run": shown}
        return Work(["evaluate", shown, "--json"], answer, identity, answer=answer)

    def read(self, work: Work) -> Outcome:
        if not work.arguments:
            return Outcome({}, [Evidence("nothing was run", "", "the gate looks at earlier phases")])
        record = read_json(work.place)
        rows = record["rows"]
        compared = [row for row in rows if row["equal"] is not None]
        different = [row for row in compared if not row["equal"]]
        results: dict[str, Value] = {f"{row['split']}.{row['metric']}": row["value"] for row in rows}
        results |= {"num_compared": len(compared), "num_different": len(different)}
        results["equal"] = bool(compared) and not different
        evidence = [
            # What is not finite is null in JSON: a metric that is not defined for this split.
            Evidence(
                f"{row['split']} {row['metric']}",
                "not finite" if row["value"] is None else f"{row['value']:.4f}",
                f"logged {row['logged']}",
            )
            for row in rows
        ]
        return Outcome(results, evidence, {"evaluation": work.place})
