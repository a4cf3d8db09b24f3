"""A phase that asks a trained recommender, as callers would: `paceline bench serving RUN --retrieval RUN --json`.

    kind: serve
    of: P2
    retrieval: retrieval
    gate: [lost == 0, p99_ms < 50]

What is measured is the whole pipeline, every stage of it, under concurrent callers on one core of this machine.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from paceline.config.sections import Bool, key
from paceline.files import read_json
from paceline.playbook.phase import UNKNOWN, Phase, Scene, Work
from paceline.playbook.results import EVERY, Evidence, Outcome, Reports, Value
from paceline.reports.amounts import counted
from paceline.telemetry.amount import show_amount


class Serve(Phase):
    """One measurement of serving."""

    reports: ClassVar[Reports] = Reports(
        {
            "p50_ms": "of a request, from question to answer",
            "p90_ms": "the same",
            "p99_ms": "the same",
            "requests_per_s": "answered, by all callers together",
            "lost": "stages that failed or were late, over all requests",
            "filters_ms": "filters and diversity over 10,000 candidates",
            "equal": "with accelerate: the compiled ranker gave the results of the one as written, in the first precision that did",
            "speed_up": "with accelerate: how much faster that one ranks; a share",
            **EVERY,
        },
        kinds={"equal": bool},
    )

    kind: Literal["serve"] = key(..., "It serves.")
    of: str = key(..., "The training phase whose best ranker, or towers, are asked.")
    retrieval: str | None = key(None, "The training phase whose towers find the candidates; null: those of `of`.")
    callers: int = key(4, "Who ask at the same time.", ge=1)
    candidates: int = key(1000, "That a request filters, scores and orders.", ge=10)
    requests: int = key(50, "Of each caller, in each of five rounds.", ge=1)
    accelerate: Bool = key(False, "Also compile the ranker, compare, and measure.")

    def trained(self) -> dict[str, str]:
        return {"of": self.of} | ({"retrieval": self.retrieval} if self.retrieval else {})

    def silent(self) -> dict[str, str]:
        return {} if self.accelerate else dict.fromkeys(("equal", "speed_up"), "set accelerate: true")

    def plan_work(self, scene: Scene) -> Work:
        runs = {}
        for word, source in self.trained().items():
            run = scene.earlier.get(source, {}).get("run")
            runs[word] = str(run) if run else UNKNOWN.format(f"{source}.run")
        arguments = ["bench", "serving", runs["of"]]
        arguments += ["--retrieval", runs["retrieval"]] if self.retrieval else []
        for name in ("callers", "candidates", "requests"):
            arguments += [f"--{name}", str(getattr(self, name))]
        arguments += [] if self.accelerate else ["--no-accelerate"]
        answer = scene.place("serving.json")
        return Work([*arguments, "--json"], answer, {"kind": "serve", "arguments": arguments}, answer=answer)

    def read(self, work: Work) -> Outcome:
        found = read_json(work.place)
        eager = found["eager"]
        results: dict[str, Value] = {name: eager["total"][name] for name in ("p50_ms", "p90_ms", "p99_ms")}
        results |= {"requests_per_s": eager["per_s"], "lost": eager["lost"], "filters_ms": found["many"]["ms"]}
        asked = f"{counted(found['callers'], 'caller')}, {counted(found['candidates'], 'candidate')} of {counted(found['items'], 'item')}, one core"
        evidence = [
            Evidence("request", _show(eager["total"]), asked),
            Evidence(
                "answered", f"{show_amount(eager['per_s'])} requests/s", f"{counted(eager['lost'], 'stage')} lost"
            ),
            *(Evidence(f"{stage['kind']} {stage['name']}", _show(stage), "") for stage in eager["stages"]),
            Evidence(
                "filters, diversity", f"{found['many']['ms']:.2f} ms", f"{found['many']['candidates']:,} candidates"
            ),
        ]
        programs = found["acceleration"]
        if programs:
            best = next((each for each in programs if each["is_equal"]), programs[0])
            results |= {"equal": best["is_equal"], "speed_up": best["speed_up"] - 1}
            evidence += [Evidence(f"compiled, {each['precision']}", *_prove(each)) for each in programs]
        return Outcome(results, evidence, {"serving": work.place})


def _show(times: dict[str, Any]) -> str:
    return f"p50 {times['p50_ms']:.2f}, p90 {times['p90_ms']:.2f}, p99 {times['p99_ms']:.2f} ms"


def _prove(program: dict[str, Any]) -> tuple[str, str]:
    equal = "equal" if program["is_equal"] else "different"
    pace = f"{program['eager_ms']:.1f} ms as written, {program['fast_ms']:.1f} ms ({program['speed_up']:.2f} ×)"
    return f"{equal}, {pace}", program["why"]
