"""The gate of a phase: conditions over its results and those of earlier phases; all must hold.

    samples_per_s >= 0.92 * baseline.samples_per_s       its own results, by their names
    final_loss < 1.1 * P0.final_loss                     an earlier phase's, by phase and name

One that does not parse, is no condition, or asks for a name that nobody will report, is refused before anything starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from paceline.config.expression import Expression, parse
from paceline.config.nearest import nearest
from paceline.errors import ConfigError, Problem
from paceline.playbook.playbook import Playbook
from paceline.playbook.results import Value
from paceline.playbook.verdicts import LIMITS, MET, NOT_JUDGED, NOT_MEASURED, NOT_MET, shown


@dataclass(frozen=True)
class Judged:
    """One condition, and what came of it."""

    text: str
    verdict: str
    values: Mapping[str, Value]
    """of the names in it"""
    why: str = ""
    """where a number in it comes from, if nobody wrote it"""

    @property
    def is_met(self) -> bool:
        return self.verdict == MET

    @property
    def is_missed(self) -> bool:
        """Not met, or not measured. What is not judged, because nobody set its threshold, has neither passed nor failed."""
        return self.verdict in (NOT_MET, NOT_MEASURED)

    def __str__(self) -> str:
        values = ", ".join(
            f"{name} = {'not set' if value is None and name.startswith(LIMITS) else shown(value)}"
            for name, value in self.values.items()
        )
        return f"`{self.text}` is {self.verdict} ({values})" + (f"; {self.why}" if self.why else "")

    def to_record(self) -> dict[str, Any]:
        return asdict(self)


def check_gates(playbook: Playbook) -> list[Problem]:
    """What is wrong with the gates of a playbook, as far as it can be known before anything starts."""
    problems: list[Problem] = []
    for name, phase in playbook.phases.items():
        for word in phase.numbers:
            if not phase.reports.has(word):
                close = nearest(word, phase.reports.names)
                do = f"write {close}" if close else f"use one of {phase.reports.listed()}"
                what = f"{name} is to list {word}, which a phase of its kind does not report"
                problems.append(Problem(what, playbook.where(name, "numbers"), do))
        for text in phase.gate:
            where = playbook.where(name, "gate")
            try:
                problems += _check_gate(playbook, name, parse(text, where), where)
            except ConfigError as error:
                problems += [replace(each, what=f"the gate of {name}: {each.what}") for each in error.problems]
    return problems


def _check_gate(playbook: Playbook, name: str, expression: Expression, where: str) -> list[Problem]:
    """What is wrong with its names; where nothing is, ConfigError if it cannot be true or false."""
    words = sorted(expression.names)
    problems = [problem for word in words if (problem := _check_name(playbook, name, word, where))]
    if not problems:
        expression.check({word: _kind_of(playbook, name, word) for word in words})
    return problems


def _kind_of(playbook: Playbook, name: str, word: str) -> type:
    """What kind of value a name in the gate of a phase has."""
    own = playbook.phases[name].reports
    head, _, rest = word.partition(".")
    if word.startswith(LIMITS):
        return float
    return own.kind_of(word) if own.has(word) else playbook.phases[head].reports.kind_of(rest)


def _check_name(playbook: Playbook, name: str, word: str, where: str) -> Problem | None:
    """What is wrong with a name in the gate of a phase."""
    own = playbook.phases[name].reports
    if word.startswith(LIMITS):
        known = [f"{LIMITS}{each}" for each in playbook.limits]
        if word in known:
            return None
        close = nearest(word, known)
        do = f"write {close}" if close else f"add `limits: {{{word.removeprefix(LIMITS)}: null}}` to the playbook"
        return Problem(f"the gate of {name} asks for {word}, and the playbook has no such threshold", where, do)
    if own.has(word):
        return _check_silence(playbook, name, word, name, word, where)
    head, _, rest = word.partition(".")
    order = list(playbook.phases)
    if head in order and rest:
        if order.index(head) > order.index(name):
            what = f"the gate of {name} asks for {word}, and {head} comes later"
            return Problem(what, where, f"move the gate to {head}")
        theirs = playbook.phases[head].reports
        if theirs.has(rest):
            return _check_silence(playbook, name, word, head, rest, where)
        close = nearest(rest, theirs.names)
        do = f"write {head}.{close}" if close else f"use one of {theirs.listed()}"
        return Problem(f"the gate of {name} asks for {word}, which no phase reports", where, do)
    close = nearest(word, [*own.names, *own.prefixes])
    do = f"write {close}" if close else f"use one of {own.listed()}, or PHASE.NAME of an earlier phase"
    return Problem(f"the gate of {name} asks for {word}, which a phase of its kind does not report", where, do)


def _check_silence(playbook: Playbook, name: str, word: str, reporter: str, theirs: str, where: str) -> Problem | None:
    """A name that phases of the reporter's kind have, and it will not, as it is written; `theirs` is its name there."""
    for silent, do in playbook.phases[reporter].silent().items():
        if theirs == silent or (silent.endswith(".") and theirs.startswith(silent)):
            what = f"the gate of {name} asks for {word}, which {reporter} will not report as it is"
            return Problem(what, where, f"{reporter}: {do}")
    return None


def judge(
    conditions: Sequence[tuple[str, str]],
    results: Mapping[str, Value],
    earlier: Mapping[str, Mapping[str, Value]],
    reported: Mapping[str, Any],
    where: str,
    limits: Mapping[str, float | None] | None = None,
    untold: Mapping[str, str] | None = None,
    missing: Mapping[str, str] | None = None,
) -> list[Judged]:
    """Every condition (text, why) against the results; `reported` are the names that the kind could have, `untold` those that this
    run cannot tell, `missing` those that it should have told, with the reason."""
    known: dict[str, Value] = {
        f"{phase}.{name}": value for phase, found in earlier.items() for name, value in found.items()
    }
    # What a kind reports and this machine or run does not have is a value that was not measured, not an unknown name.
    known |= dict.fromkeys(reported) | dict(results)
    known |= {f"{LIMITS}{name}": value for name, value in (limits or {}).items()}
    return [_judge(parse(text, where), known, why, untold or {}, missing or {}) for text, why in conditions]


def _judge(
    expression: Expression, known: Mapping[str, Value], why: str, untold: Mapping[str, str], missing: Mapping[str, str]
) -> Judged:
    values = {name: known.get(name) for name in sorted(expression.names)}
    unset = [name for name, value in values.items() if name.startswith(LIMITS) and value is None]
    silent = next((untold[name] for name in values if name in untold), None)
    if silent is not None:
        return Judged(expression.text, NOT_JUDGED, values, silent)
    if unset:
        said = "; ".join([*([why] if why else []), f"nobody has set it: {unset[0]}=NUMBER"])
        return Judged(expression.text, NOT_JUDGED, values, said)
    if any(value is None and name in known for name, value in values.items()):
        reason = next((missing[name] for name in values if name in missing), "")
        return Judged(expression.text, NOT_MEASURED, values, reason or why)
    return Judged(expression.text, MET if expression.holds(known) else NOT_MET, values, why)
