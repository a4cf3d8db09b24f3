"""A phase that looks whether a profiled run used the attention that it promised, and was served what it asked for: no silent fallback.

kind: audit
of: profiled
gate: [as_promised, fallbacks == 0]
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from paceline.config.sections import key
from paceline.files import read_json
from paceline.playbook.pace import short
from paceline.playbook.phase import UNKNOWN, Phase, Scene, Work
from paceline.playbook.results import EVERY, Evidence, Grid, Outcome, Reports, Value
from paceline.telemetry.reader import Run, read_run

_PROMISE = "attention.backend"
_ASKED = (
    *("attention.impl", "model.sparse_path", "precision.mode", "parallel.compression", "parallel.backend"),
    *("train.optimizer.fused", "train.compile.enabled", "train.graph"),
)
"""choices whose request is what should come of it; `auto` asks for nothing"""


class Audit(Phase):
    """What ran, against what was said."""

    reports: ClassVar[Reports] = Reports(
        {
            "as_promised": "the profile shows the kernels that the run promised",
            "fallbacks": "requests that were not served, and kernels of the recipe's own that plain torch stood in for",
            "backend": "what was promised",
            **EVERY,
        },
        kinds={"as_promised": bool, "backend": str},
    )

    kind: Literal["audit"] = key(..., "It audits.")
    of: str = key(..., "The training phase with a profile.")

    def trained(self) -> dict[str, str]:
        return {"of": self.of}

    def plan_work(self, scene: Scene) -> Work:
        answer = scene.place("attention.json")
        run = scene.earlier.get(self.of, {}).get("run")
        shown = str(run) if run else UNKNOWN.format(f"{self.of}.run")
        identity = {"kind": "audit", "run": shown}
        if run is not None and not tells_attention(read_run(run)):
            return Work([], answer, identity)
        arguments = ["bench", "attention", "--run", shown, "--json"]
        return Work(arguments, answer, identity, answer=answer, beside={"run": run} if run else {})

    def read(self, work: Work) -> Outcome:
        if not work.arguments:
            return Outcome({}, skipped="the recipe tells of no attention: there is no kernel to hold it to")
        audit = read_json(work.place)
        run = work.beside["run"]
        fallbacks = find_fallbacks(read_run(run))
        wrong = str(audit["wrong"])
        results: dict[str, Value] = {
            "as_promised": not wrong,
            "fallbacks": len(fallbacks),
            "backend": str(audit["promised"]),
        }
        traces = ", ".join(short(Path(trace)) for trace in audit["traces"])
        events = f"{short(run / 'events.jsonl')}, choices at the start"
        evidence = [
            Evidence("promised", str(audit["promised"]), events),
            Evidence("seen", wrong or "as promised", traces),
        ]
        evidence += [Evidence("fallback", said, events) for said in fallbacks]
        rows = [
            [
                each["backend"],
                ", ".join(audit["branches"].get(each["backend"], ())),
                f"{each['count']:,}",
                f"{each['time_ms']:.3f}",
                ", ".join(each["names"][:3]),
            ]
            for each in audit["seen"]
        ]
        table = Grid("attention in the profile", ("attention", "for", "calls", "ms", "kernels"), rows)
        sources = {"as_promised": f"{traces}, the profiled steps", "fallbacks": events, "backend": events}
        return Outcome(results, evidence, {"audit": work.place}, sources, tables=[table])


def tells_attention(run: Run) -> bool:
    return _PROMISE in run.choices()


def find_fallbacks(run: Run) -> list[str]:
    """What was asked for and not served, in words; and, on a GPU, plain torch that nobody asked for in place of the recipe's kernels."""
    choices = run.choices()
    found = []
    for about in _ASKED:
        event = choices.get(about)
        if event is None or event.get("requested") in ("auto", None):
            continue
        if str(event["requested"]) != str(event["effective"]):
            found.append(f"{about}: {event['requested']} → {event['effective']} ({event.get('reason')})")
    path, device = choices.get("model.sparse_path"), choices.get("device")
    on_gpu = device is not None and "cuda" in str(device["effective"])
    if path and on_gpu and (path.get("requested"), path.get("effective")) == ("auto", "torch"):
        found.append(f"model.sparse_path: auto → torch ({path.get('reason')})")
    return found
