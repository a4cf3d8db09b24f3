"""A phase that trains one rank alone with its share of the batch, and says what each rank of an earlier run reaches beside the others.

kind: isolate
against: baseline
set: {launch.nproc: 1, train.global_batch: = train.global_batch / world_size}
gate: [efficiency >= limits.efficiency]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

from paceline.config.sections import key
from paceline.playbook.kinds.train import Train
from paceline.playbook.pace import read_pace, short
from paceline.playbook.phase import Scene, Work
from paceline.playbook.results import Evidence, Outcome, Reports, Value
from paceline.reports.amounts import counted
from paceline.telemetry.reader import read_run


class Isolate(Train):
    """One rank, against its share of a run of several."""

    reports: ClassVar[Reports] = Reports(
        {
            **Train.reports.names,
            "efficiency": "pace of the earlier run, by its ranks, over that of one alone",
            "per_rank": "pace of the earlier run, by its ranks",
        },
        Train.reports.prefixes,
    )

    ignores: ClassVar[Mapping[str, str]] = {
        "launch.nproc": "it trains one rank alone",
        "launch.omp_threads": "it has the cores of one rank",
        "train.global_batch": "it has one rank's share of it",
    }

    kind: Literal["isolate"] = key(..., "It trains one rank alone.")  # type: ignore[assignment]
    against: str = key(..., "The training phase with several ranks.")

    def trained(self) -> dict[str, str]:
        return {"against": self.against}

    def plan_work(self, scene: Scene) -> Work:
        work = super().plan_work(scene)
        run = scene.earlier.get(self.against, {}).get("run")
        return dataclasses.replace(work, beside={"against": run} if run else {})

    def read(self, work: Work) -> Outcome:
        outcome = super().read(work)
        together = read_run(work.beside["against"])
        num_ranks = together.run.attempts[-1].world_size
        alone, all_of_them = read_pace(read_run(work.place), self.window), read_pace(together, self.window)
        results: dict[str, Value] = {"efficiency": None, "per_rank": None}
        evidence, sources = list(outcome.evidence), dict(outcome.sources)
        if alone is not None and all_of_them is not None and alone.unit == all_of_them.unit:
            per_rank = all_of_them.mean / num_ranks
            results = {"efficiency": per_rank / alone.mean, "per_rank": per_rank}
            theirs = (
                f"{short(work.beside['against'] / 'metrics.csv')}, {all_of_them.window}, {counted(num_ranks, 'rank')}"
            )
            mine = f"{short(work.place / 'metrics.csv')}, {alone.window}"
            evidence.append(Evidence("efficiency of a rank", f"{per_rank / alone.mean:.1%}", f"{theirs}, over {mine}"))
            sources |= {"efficiency": f"{theirs}, over {mine}", "per_rank": theirs}
        return dataclasses.replace(outcome, results={**outcome.results, **results}, evidence=evidence, sources=sources)
