"""What a phase takes from an earlier one: the values that won there, or its leading cases. Never copied by hand.

    find_used(playbook, "P2", links)     -> Used(values={"model.blocks": 2}, source="P1.best", file=Path("…/best.yaml"))

Of a winner only what was varied counts (and what it had from an earlier winner): the caps that made a screening cheap stay behind.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.config.source import read_layer
from paceline.errors import ConfigError, Problem, UsageError
from paceline.playbook.handed import Links, check_runs, find_runs
from paceline.playbook.phase import UNKNOWN, Phase
from paceline.playbook.playbook import Playbook
from paceline.playbook.swept import RECORD, read_swept
from paceline.recipes.job import load_job

WORD = re.compile(r"(?P<phase>\w+)\.(?:best|top(?P<count>[1-9]\d*))")


@dataclass(frozen=True)
class Used:
    """What a phase takes, and from where."""

    source: str = ""
    """`P1.best`; empty: nothing is used, or everything was given by hand"""
    file: Path | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    cases: Sequence[Mapping[str, Any]] = ()
    baseline: Mapping[str, Any] | None = None
    runs: Mapping[str, tuple[str, Path | None]] = field(default_factory=dict)
    """key -> phase and the run of it that the key gets; None: it will have one by then"""

    @property
    def settings(self) -> dict[str, Any]:
        """All that comes from earlier phases."""
        runs = {key: str(run or UNKNOWN.format(f"{phase}.run")) for key, (phase, run) in self.runs.items()}
        return {**self.values, **runs}

    def to_record(self, by_hand: Mapping[str, Any]) -> list[dict[str, Any]]:
        """One entry per value: what was found, and what was typed in its place."""
        won = [
            {"from": self.source, "file": str(self.file or ""), "key": key, "value": value}
            | ({"by_hand": by_hand[key]} if key in by_hand else {})
            for key, value in self.values.items()
        ]
        handed = [
            {"from": f"{phase}.run", "file": str(run or ""), "key": key, "value": str(run or "")}
            for key, (phase, run) in self.runs.items()
        ]
        return won + handed


def check_uses(playbook: Playbook) -> list[Problem]:
    """References to phases that are not there, come later, or have no winner."""
    order = list(playbook.phases)
    found = check_runs(playbook)
    for place, (name, phase) in enumerate(playbook.phases.items()):
        found += [problem for word in phase.winners() for problem in _check_use(playbook, name, word, order[:place])]
        found += _check_of(playbook, name, order[:place])
    return found


def _check_use(playbook: Playbook, name: str, word: str, earlier: Sequence[str]) -> Iterator[Problem]:
    where, match = playbook.where(name, "use"), WORD.fullmatch(word)
    if match is None:
        yield Problem(f"{name} uses {word!r}, which means nothing", where, "write P1.best or A.top2")
        return
    source = match["phase"]
    if source not in earlier:
        what = f"{name} uses {word}, and no earlier phase is called {source}"
        yield Problem(what, where, f"name one of: {', '.join(earlier) or 'none'}")
    elif not _has_winner(playbook.phases[source]):
        kind = playbook.phases[source].kind
        why = "varies nothing" if kind in ("sweep", "compare") else f"is of kind {kind}"
        yield Problem(f"{name} uses {word}, and {source} {why}", where, "name a sweep or a comparison")
    elif match["count"] and playbook.phases[name].kind != "sweep":
        yield Problem(f"{name} uses {word}; only a sweep can run several cases", where, f"write {source}.best")


def _check_of(playbook: Playbook, name: str, earlier: Sequence[str]) -> Iterator[Problem]:
    runs = [each for each in earlier if playbook.phases[each].trains]
    for word, source in playbook.phases[name].trained().items():
        if source not in runs:
            what = f"{name} is of {source}, which is no earlier phase that trains"
            yield Problem(what, playbook.where(name, word), f"name one of: {', '.join(runs) or 'none'}")


def _has_winner(phase: Phase) -> bool:
    return "best" in type(phase).model_fields and bool(phase.wins_by() or phase.winners())


def find_used(playbook: Playbook, name: str, links: Links, expected: Sequence[str] = ()) -> Used:
    """What the phase uses: of the first alternative that is there. `expected` are phases that will have run by then.

    UsageError where nothing is there and not everything was given by hand.
    """
    runs = find_runs(playbook, name, links, expected)
    return dataclasses.replace(_find_won(playbook, name, links, expected), runs=runs)


def _find_won(playbook: Playbook, name: str, links: Links, expected: Sequence[str]) -> Used:
    phase = playbook.phases[name]
    words = phase.winners()
    if not words:
        return Used()
    by_hand = playbook.by_hand(name)
    for word in words:
        source, _, what = word.partition(".")
        given = getattr(playbook.phases[source], "best", None)
        if given is not None:
            return Used(word, Path(given), read_values(playbook, name, source, Path(given)))
        if source in links and "best" in links[source]:
            if what != "best":
                return _leading(playbook, name, word, links[source])
            file = links[source]["best"]
            return Used(word, file, read_values(playbook, name, source, file))
        if source in expected:
            later = dict.fromkeys(playbook.winner_keys(source), UNKNOWN.format(word))
            return Used(word, None, later) if what == "best" else Used(word, None, {}, [later])
    wanted = playbook.winner_keys(words[-1].partition(".")[0])
    missing = [key for key in wanted if key not in by_hand]
    if not missing and all(word.endswith(".best") for word in words):
        return Used()
    raise _nothing(name, words, missing)


def _nothing(name: str, words: Sequence[str], missing: Sequence[str]) -> UsageError:
    source = words[-1].partition(".")[0]
    what = f"{name} takes its settings from {' or '.join(words)}, and {source} has not been done here"
    do = f"run {source}, too; or give {source}.best=FILE (a sweep's best.yaml)"
    if all(word.endswith(".best") for word in words):
        do += f"; or type {' '.join(f'{name}.{key}=…' for key in missing)}"
    return UsageError(what, f"phase {name}", do)


def read_values(playbook: Playbook, name: str, source: str, file: Path) -> dict[str, Any]:
    """The winner's values of everything that was varied; a best.yaml of another recipe is refused."""
    entries = read_layer(file).entries
    recipe = load_job(playbook.config_of(name)).recipe.name
    found = entries.get("recipe")
    if found is None or found.value != recipe:
        theirs = found.value if found is not None else "none"
        what = f"{file.name} is a configuration of the recipe {theirs}, and {name} trains {recipe}"
        raise ConfigError(what, str(file), f"name a best.yaml of {recipe}")
    keys = playbook.winner_keys(source)
    # A script's own parameter is `params.batch` in a plan, and stands in its section in a configuration.
    entries = {key.removeprefix("command."): entry for key, entry in entries.items() if "params" in key} | entries
    missing = [key for key in keys if key not in entries]
    if missing:
        what = f"{file.name} has no value for {', '.join(missing)}, which {source} varies"
        raise ConfigError(what, str(file), f"name the best.yaml of a sweep over {', '.join(keys)}")
    return {key: entries[key].value for key in keys}


def _leading(playbook: Playbook, name: str, word: str, links: Mapping[str, Path]) -> Used:
    """The leading cases of a sweep, and its baseline, which every comparison needs."""
    match = WORD.fullmatch(word)
    assert match is not None
    swept = read_swept(links["sweep"])
    baseline = dict(swept.baseline.values) if swept.baseline is not None else None
    cases = [dict(case.values) for case in swept.top(int(match["count"]))]
    if baseline is not None and baseline not in cases:
        cases.append(baseline)
    return Used(word, links["sweep"] / RECORD, {}, cases, baseline)
