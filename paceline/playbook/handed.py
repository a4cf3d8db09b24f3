"""Runs that are handed on: what an earlier phase trained becomes the value of a setting that names a run.

retrieval: {kind: train, set: {model.kind: towers}}
P2: {kind: train, runs: {evaluate.retrieval: retrieval}}

find_runs(playbook, "P2", links)     -> {"evaluate.retrieval": ("retrieval", Path("…/retrieval/run"))}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from paceline.errors import Problem, UsageError
from paceline.playbook.playbook import Playbook

Links = Mapping[str, Mapping[str, Path]]
"""phase -> what it left"""


def named_runs(playbook: Playbook, name: str) -> dict[str, str]:
    """Key -> the phase whose run it gets, unless something else was typed for it."""
    runs: Mapping[str, str] = getattr(playbook.phases[name], "runs", {})
    by_hand = playbook.by_hand(name)
    return {key: phase for key, phase in runs.items() if key not in by_hand}


def check_runs(playbook: Playbook) -> list[Problem]:
    """Phases that are not there, come later, or train nothing; keys that are set besides."""
    order = list(playbook.phases)
    return [problem for place, name in enumerate(order) for problem in _check(playbook, name, order[:place])]


def _check(playbook: Playbook, name: str, earlier: Sequence[str]) -> Iterator[Problem]:
    where = playbook.where(name, "runs")
    trained = [each for each in earlier if playbook.phases[each].trains]
    for key, source in getattr(playbook.phases[name], "runs", {}).items():
        if source not in trained:
            what = f"{name} takes the run of {source} for {key}, which is no earlier phase that trains"
            yield Problem(what, where, f"name one of: {', '.join(trained) or 'none'}")
        if key in getattr(playbook.phases[name], "set", {}):
            yield Problem(f"{key} is set, and the run of {source} besides", where, "keep one of them")


def find_runs(
    playbook: Playbook, name: str, links: Links, expected: Sequence[str] = ()
) -> dict[str, tuple[str, Path | None]]:
    """Key -> phase and its run, None of one that is `expected` to have run by then; UsageError where there will be none."""
    found: dict[str, tuple[str, Path | None]] = {}
    for key, source in named_runs(playbook, name).items():
        run = links.get(source, {}).get("run")
        if run is None and source not in expected:
            what = f"{name} takes the run of {source} for {key}, and {source} has not been done here"
            raise UsageError(
                what, f"phase {name}", f"run {source}, too; or type {name}.{key}=RUN, or {name}.{key}=null"
            )
        found[key] = (source, run)
    return found
