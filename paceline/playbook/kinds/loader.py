"""A phase that trains a little on real data, and says how long the first batch took and what share of a step is spent waiting for data.

kind: loader
when: data.path != null
set: {train.max_steps: 40, telemetry.log_every: 1}
gate: [data_share <= limits.data_share, first_batch_s <= limits.first_batch_s]
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from paceline.config.sections import key
from paceline.playbook.kinds.train import Train
from paceline.playbook.pace import short
from paceline.playbook.phase import Work
from paceline.playbook.results import Evidence, Outcome, Reports, Value
from paceline.telemetry.numbers import is_finite
from paceline.telemetry.reader import Row, read_run


class Loader(Train):
    """A short run on data that has to be read."""

    reports: ClassVar[Reports] = Reports(
        {
            **Train.reports.names,
            "data_share": "of a step's time that waits for data, over the steps after the first row",
            "first_batch_s": "what the first batch took; of the first row, where that has several steps their mean",
        },
        Train.reports.prefixes,
    )

    kind: Literal["loader"] = key(..., "It looks at the loader.")  # type: ignore[assignment]

    def read(self, work: Work) -> Outcome:
        outcome, run = super().read(work), read_run(work.place)
        file = short(run.layout.metrics)
        told = [row for row in run.timed if is_finite(row.get("data_ms"))]
        later = told[1:] or told
        results: dict[str, Value] = {"data_share": None, "first_batch_s": None}
        evidence, sources = list(outcome.evidence), dict(outcome.sources)
        if told:
            share = sum(map(_waited, later)) / max(sum(map(_taken, later)), 1e-9)
            results = {"data_share": share, "first_batch_s": told[0]["data_ms"] / 1e3}
            begun = int(later[0]["step"]) - int(later[0].get("window_steps") or 1) + 1
            sources |= {
                "data_share": f"{file}, data_ms over step_ms, steps {begun:,} to {later[-1]['step']:,}",
                "first_batch_s": f"{file}, data_ms, the row of step {told[0]['step']:,}",
            }
            evidence += [
                Evidence("waiting for data", f"{share:.1%} of a step", sources["data_share"]),
                Evidence("first batch", f"{told[0]['data_ms'] / 1e3:.3f} s", sources["first_batch_s"]),
            ]
        return dataclasses.replace(outcome, results={**outcome.results, **results}, evidence=evidence, sources=sources)


def _waited(row: Row) -> float:
    return float(row["data_ms"]) * (row.get("window_steps") or 1)


def _taken(row: Row) -> float:
    return float(row["step_ms"]) * (row.get("window_steps") or 1)
