"""Where the time of each rank goes: from timing/, where a run wrote it.

All ranks take equally long over a step, so that tells nothing; the slow one waits least. Whether that is more than noise is
`paceline diagnose`'s business, or that of a sweep with a rank table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.reports.amounts import count, figure
from paceline.reports.page import Part, Table
from paceline.reports.run_facts import RunFacts
from paceline.telemetry.numbers import is_finite
from paceline.telemetry.reader import Row

_COLUMNS = ("step_ms", "data_ms", "forward_ms", "backward_ms", "optimizer_ms", "wait_ms")


def rank_phases(facts: RunFacts) -> Iterator[Part]:
    """Nothing where ranks did not write their own times."""
    attempts = facts.run.run.attempts
    num_ranks = attempts[-1].world_size if attempts else 0
    times = {rank: _means(facts.run.timing(rank)) for rank in range(num_ranks)}
    times = {rank: means for rank, means in times.items() if means}
    if len(times) < 2:
        return
    rows = [[count(rank), *(figure(means.get(name)) for name in _COLUMNS)] for rank, means in times.items()]
    names = [name.replace("_ms", " ms") for name in _COLUMNS]
    caption = "means per step, from timing/; wait: how long its gradients waited for those of the others"
    yield Table(("rank", *names), rows, frozenset({"rank", *names}), caption=caption)


def _means(rows: Sequence[Row]) -> dict[str, float]:
    """Over all steps of the windows that have the number."""
    found = {}
    for name in _COLUMNS:
        known = [(row["window_steps"], row[name]) for row in rows if is_finite(row.get(name))]
        if known:
            found[name] = sum(steps * value for steps, value in known) / sum(steps for steps, _ in known)
    return found
