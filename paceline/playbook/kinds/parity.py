"""A phase that holds the fast paths of sparse attention to their reference: `paceline bench parity --json`."""

from __future__ import annotations

from typing import ClassVar, Literal

from paceline.config.sections import key
from paceline.files import read_json
from paceline.playbook.pace import short
from paceline.playbook.phase import Phase, Scene, Work
from paceline.playbook.results import EVERY, Evidence, Grid, Outcome, Reports, Value
from paceline.reports.amounts import counted


class Parity(Phase):
    """Errors of every path that can run here, and their times."""

    reports: ClassVar[Reports] = Reports(
        {
            "equal": "every path computes what the reference says, within the limit of its precision",
            "num_compared": "cases, paths and precisions",
            "num_different": "of those, how many are off",
            "has_fast": "whether the fast path can run here",
            "fast_is_faster": "than plain torch; not measured without it",
            **EVERY,
        },
        kinds={"equal": bool, "has_fast": bool, "fast_is_faster": bool},
    )

    kind: Literal["parity"] = key(..., "It compares paths of attention.")
    seed: int = key(0, "Another seed, other numbers to compare on.", ge=0)
    length: int = key(2048, "Tokens of the row that is timed.", ge=1)

    def plan_work(self, scene: Scene) -> Work:
        answer = scene.place("parity.json")
        identity = {"kind": "parity", "seed": self.seed, "length": self.length}
        arguments = ["bench", "parity", "--seed", str(self.seed), "--length", str(self.length), "--json"]
        return Work(arguments, answer, identity, answer=answer)

    def read(self, work: Work) -> Outcome:
        measured = read_json(work.place)
        rows, times = measured["rows"], measured["times"]
        wrong = [row for row in rows if not row["ok"]]
        results: dict[str, Value] = {
            "equal": not wrong,
            "num_compared": len(rows),
            "num_different": len(wrong),
            "has_fast": "fast" in times,
            "fast_is_faster": measured["fast_is_faster"],
        }
        source = f"{short(work.place)}, {counted(len(rows), 'comparison')} on {measured['device']}"
        evidence = [Evidence("fast path", str(measured["fast"]), work.place.name)]
        evidence += [
            Evidence(f"{path}, {measured['length']:,} tokens", f"{spent['total_ms']:,.2f} ms", "forward and backward")
            for path, spent in times.items()
        ]
        cells = [
            [
                *(row["case"], row["path"], row["precision"], f"{row['error']:.1e}", row["worst"], f"{row['limit']:g}"),
                "" if row["ok"] else "wrong",
            ]
            for row in rows
        ]
        table = Grid("against float64", ("case", "path", "precision", "largest error", "of", "limit", ""), cells)
        sources = dict.fromkeys(results, source)
        return Outcome(results, evidence, {"parity": work.place}, sources, tables=[table])
