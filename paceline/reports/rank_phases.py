"""Where the time of each rank goes, and whether one of them holds the others up: from timing/, where a run wrote it.

All ranks take equally long over a step, so that tells nothing; the slow one waits least. How certain that is, against the run's own noise,
is `paceline diagnose`'s business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from paceline.reports.amounts import UNKNOWN, count, figure
from paceline.reports.page import Note, Part, Table
from paceline.reports.run_facts import RunFacts
from paceline.telemetry.numbers import is_finite
from paceline.telemetry.reader import Row

_COLUMNS = ("step_ms", "data_ms", "forward_ms", "backward_ms", "optimizer_ms", "wait_ms")
_LEAST_EXCESS = 0.04
"""of a step: whoever is less behind than that holds nobody up"""


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
    yield Note(judge(times))


def _means(rows: Sequence[Row]) -> dict[str, float]:
    """Over all steps of the windows that have the number."""
    found = {}
    for name in _COLUMNS:
        known = [(row["window_steps"], row[name]) for row in rows if is_finite(row.get(name))]
        if known:
            found[name] = sum(steps * value for steps, value in known) / sum(steps for steps, _ in known)
    return found


def judge(times: Mapping[int, Mapping[str, float]]) -> str:
    """Who holds the others up, in a sentence."""
    waits = {rank: means["wait_ms"] for rank, means in times.items() if "wait_ms" in means}
    if len(waits) < len(times):
        return "How long each rank waited for the others is not known: this strategy does not tell."
    slowest = min(waits, key=lambda rank: waits[rank])
    others = median(wait for rank, wait in waits.items() if rank != slowest)
    step_ms = median(means["step_ms"] for means in times.values())
    excess_ms = others - waits[slowest]
    share = f"{excess_ms / step_ms:.1%} of a step" if step_ms else UNKNOWN
    told = f"rank {slowest} waits {waits[slowest]:.1f} ms in a step, the others {others:.1f} ms: it is {excess_ms:.1f} ms behind, {share}"
    if excess_ms < _LEAST_EXCESS * step_ms:
        return f"Balanced: no rank holds the others up ({told})."
    return f"Imbalanced: {told}. `paceline diagnose` says whether that is more than noise, and what to do."
