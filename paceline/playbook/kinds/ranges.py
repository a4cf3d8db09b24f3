"""A phase that says where the time of a profiled run went, range by range: `paceline bench ranges RUN --json`.

kind: ranges
of: profiled
gate: [covered >= 0.5]
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar, Literal

from paceline.config.sections import key
from paceline.files import read_json
from paceline.playbook.pace import short
from paceline.playbook.phase import UNKNOWN, Phase, Scene, Work
from paceline.playbook.results import EVERY, Evidence, Grid, Outcome, Reports, Value
from paceline.reports.amounts import counted


class Ranges(Phase):
    """The share of each range in a step."""

    reports: ClassVar[Reports] = Reports(
        {
            "covered": "share of the steps' time that lies in a phase: data, forward, backward, optimizer",
            "num_ranges": "that were seen",
            "num_steps": "that were profiled",
            **EVERY,
        },
        {"share.": "of a range in the steps' time: share.forward, or share.nsa_window"},
    )

    kind: Literal["ranges"] = key(..., "It attributes time.")
    of: str = key(..., "The training phase with a profile.")

    def trained(self) -> dict[str, str]:
        return {"of": self.of}

    def plan_work(self, scene: Scene) -> Work:
        answer = scene.place("ranges.json")
        run = scene.earlier.get(self.of, {}).get("run")
        shown = str(run) if run else UNKNOWN.format(f"{self.of}.run")
        identity = {"kind": "ranges", "run": shown}
        return Work(["bench", "ranges", shown, "--json"], answer, identity, answer=answer)

    def read(self, work: Work) -> Outcome:
        found = read_json(work.place)
        results: dict[str, Value] = {name: found[name] for name in ("covered", "num_steps")}
        results["num_ranges"] = len(found["ranges"])
        results |= {f"share.{_word(row['name'])}": row["share"] for row in found["ranges"]}
        source = f"{short(Path(found['trace']))}, {counted(found['num_steps'], 'step')}, {found['clock']}"
        rows = [
            [row["name"], row["inside"], f"{row['calls']:,}", f"{row['ms']:,.3f}", f"{row['share']:.1%}"]
            for row in found["ranges"]
        ]
        table = Grid(f"time by range ({found['clock']})", ("range", "inside", "times", "ms a step", "share"), rows)
        evidence = [Evidence("inside a phase", f"{found['covered']:.1%} of a step", source)]
        if found.get("note"):
            evidence.append(Evidence("stages", found["note"], source))
        return Outcome(results, evidence, {"ranges": work.place}, dict.fromkeys(results, source), tables=[table])


def _word(name: str) -> str:
    """As a gate can say it: nsa_window_backward."""
    return re.sub(r"\W+", "_", name)
