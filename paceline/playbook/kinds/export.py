"""A phase that makes a trained model ready for use: `paceline export RUN --out DIR --json`, with `compile_check` also compiled.

What is measured then: a block of the test split through the exported model, as written and compiled, outputs equal, times of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from paceline.config.sections import Bool, key
from paceline.files import read_json
from paceline.playbook.phase import UNKNOWN, Phase, Scene, Work
from paceline.playbook.results import EVERY, Evidence, Outcome, Reports, Value

_CHECKED = ("equal", "max_difference", "eager_ms", "compiled_ms", "compile_s", "speed_up")


class Export(Phase):
    """One export."""

    reports: ClassVar[Reports] = Reports(
        {
            "step": "that was exported",
            "num_parameters": "of the model",
            "bytes": "of its weights",
            "equal": "with compile_check: compiled outputs are those of the model as written, within the tolerance",
            "max_difference": "with compile_check: the largest relative difference of any number",
            "eager_ms": "with compile_check: median time of a block, as written",
            "compiled_ms": "with compile_check: the same compiled",
            "compile_s": "with compile_check: what compiling took",
            "speed_up": "with compile_check: eager_ms / compiled_ms - 1",
            **EVERY,
        },
        kinds={"equal": bool},
    )

    kind: Literal["export"] = key(..., "It exports.")
    of: str = key(..., "The training phase whose best model is exported.")
    compile_check: Bool = key(False, "Also compile it, compare outputs, and measure.")

    def trained(self) -> dict[str, str]:
        return {"of": self.of}

    def silent(self) -> Mapping[str, str]:
        return {} if self.compile_check else dict.fromkeys(_CHECKED, "set compile_check: true")

    def plan_work(self, scene: Scene) -> Work:
        run = scene.earlier.get(self.of, {}).get("run")
        shown = str(run) if run else UNKNOWN.format(f"{self.of}.run")
        place = scene.place("export")
        more = ["--compile-check"] if self.compile_check else []
        identity = {"kind": "export", "run": shown, "compile_check": self.compile_check}
        arguments = ["export", shown, "--out", str(place), *more, "--json"]
        return Work(arguments, place, identity, answer=scene.place("export.json"))

    def read(self, work: Work) -> Outcome:
        assert work.answer is not None
        answer = read_json(work.answer)
        check = answer.get("compile_check") or {}
        results: dict[str, Value] = {name: answer[name] for name in ("step", "num_parameters", "bytes")}
        results |= {name: check.get(name) for name in _CHECKED}
        size = f"{answer['num_parameters']:,} parameters, {answer['bytes'] / 2**20:,.1f} MiB"
        evidence = [Evidence("export", size, f"{work.place.name}, step {answer['step']:,}")]
        if check:
            evidence += [
                Evidence("compiled outputs", "equal" if check["equal"] else "different", check["tolerance"]),
                Evidence("largest difference", f"{check['max_difference']:.2g}", check["compared"]),
                Evidence("eager", f"{check['eager_ms']:.1f} ms", check["measured"]),
                Evidence("compiled", f"{check['compiled_ms']:.1f} ms", check["measured"]),
                Evidence("speed-up", f"{check['speed_up']:+.1%}", f"compiling took {check['compile_s']:.1f} s, once"),
            ]
        return Outcome(results, evidence, {"export": work.place})
