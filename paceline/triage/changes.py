"""A rung on a configuration: the values that it sets there, or why it does not apply.

plan_change(rung, subject)   -> Change(rung, {"parallel.bucket_mb": 100}, skip="")   or skip="it is so already"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from paceline.config.contradictions import Facts
from paceline.config.describe import describe
from paceline.config.fingerprint import may_fork_change
from paceline.config.sections import IDENTITY
from paceline.config.source import show
from paceline.errors import PacelineError
from paceline.launch.placement import place_ranks
from paceline.recipes.job import load_job
from paceline.triage.ladder import Rung, condition, formula
from paceline.triage.subject import Subject, same_values


@dataclass(frozen=True)
class Change:
    """What a rung means here."""

    rung: Rung
    settings: dict[str, Any]
    skip: str = ""
    """why it is not tried"""

    @property
    def words(self) -> str:
        return " ".join(f"{name}={show(value)}" for name, value in self.settings.items())


def plan_change(rung: Rung, subject: Subject) -> Change:
    """The change, with its values computed; one that cannot be made here says why."""
    unknown = [name for name in rung.set if not _has_key(subject, name)]
    if unknown:
        return Change(rung, dict(rung.set), f"recipe {subject.job.recipe.name} has no key {unknown[0]}")
    expression = condition(rung)
    if expression is not None and not expression.holds(subject.values):
        return Change(rung, dict(rung.set), rung.otherwise)
    settings = {name: _computed(value, name, subject) for name, value in rung.set.items()}
    if same_values(subject, settings):
        return Change(rung, settings, "it is so already")
    return Change(rung, settings, _find_refusal(subject, settings))


def changes_identity(subject: Subject, settings: Mapping[str, Any]) -> list[str]:
    """The keys with which a run would not be the same run any more."""
    known = describe(type(subject.job.config))
    return [name for name in settings if known[_leaf(known, name)].fingerprint == IDENTITY]


def can_go_on(subject: Subject, settings: Mapping[str, Any]) -> bool:
    """Whether a checkpoint of the run can be gone on from with these; a shorter sequence or another batch begins anew."""
    return all(may_fork_change(name) for name in changes_identity(subject, settings))


def _computed(value: Any, name: str, subject: Subject) -> Any:
    expression = formula(value, f"{name}={value}")
    if expression is None:
        return value
    values, known = subject.values, describe(type(subject.job.config))
    result = expression.evaluate(values)
    annotation = known[name].annotation if name in known else type(values.get(name))
    is_whole = annotation is int or (int in get_args(annotation) and float not in get_args(annotation))
    return max(1, int(result)) if is_whole else result


def _find_refusal(subject: Subject, settings: Mapping[str, Any]) -> str:
    """Why `paceline train` would not take them; empty: it would."""
    try:
        words = [*subject.overrides, *(f"{name}={show(value)}" for name, value in settings.items())]
        job = load_job(subject.target, replace_words(words))
        placement = place_ranks(job.config.launch, job.origins["launch.gpus"])
        job.check(Facts(placement.world_size, placement.num_gpus))
    except PacelineError as error:
        return f"it cannot be: {error.problems[0].what}"
    idle = dict(job.idle(list(settings)))
    reasons = [idle.get(name, "") for name in settings]
    return f"it has no effect here: {reasons[0]}" if all(reasons) else ""


def _has_key(subject: Subject, name: str) -> bool:
    known = describe(type(subject.job.config))
    return _leaf(known, name) in known


def _leaf(known: Mapping[str, Any], name: str) -> str:
    """The key that a name is, or is an entry of: launch.env of launch.env.NCCL_DEBUG."""
    if name in known:
        return name
    return next((key for key in known if name.startswith(f"{key}.")), name)


def replace_words(words: list[str]) -> list[str]:
    """Of two overrides of one key the later one."""
    by_key = {word.partition("=")[0]: word for word in words}
    return list(by_key.values())
