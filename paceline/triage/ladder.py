"""A ladder: what to change for one symptom, one thing at a time, the cheapest first, as a YAML file says it.

load_ladder("deadlock").rungs[0]   -> Rung(name="compression off", set={"parallel.compression": "none"}, price="free", …)

A value that begins with `=` is computed from the configuration: `= train.optimizer.lr / 2`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import paceline
from paceline.config.expression import Expression, parse
from paceline.config.loading import resolve
from paceline.config.sections import Bool, Section, key
from paceline.config.source import read_layer
from paceline.errors import ConfigError, Problem, UsageError

SYMPTOMS = ("deadlock", "out_of_memory", "instability", "low_throughput")
PRICES = ("free", "small", "medium", "large", "training")
"""What a change costs, roughly, before it is measured; `training`: another training comes of it, whatever it costs."""
_SHIPPED = Path(paceline.__file__).parent / "configs" / "ladders"


class Rung(Section):
    """One change."""

    name: str = key(..., "What a person calls it.")
    set: dict[str, Any] = key(..., "Keys and their values.", min_length=1)
    price: Literal["free", "small", "medium", "large", "training"] = key("small", "What it costs, roughly.")
    when: str | None = key(None, "A condition over the configuration, world_size, num_gpus and micro_batch.")
    otherwise: str = key("", "Why it does not apply where the condition does not hold.")
    is_evidence: Bool = key(False, "It is tried for what it tells, and is no cure.")
    why: str = key("", "How it may help.")


class LadderConfig(Section):
    """A whole file."""

    symptom: Literal["deadlock", "out_of_memory", "instability", "low_throughput"] = key(..., "What it is for.")
    about: str = key("", "The symptom in words.")
    steps: int = key(60, "Optimizer steps of a trial, where a run does not say how many it took.", ge=5)
    timeout_s: float = key(600, "A trial that takes longer has stalled.", gt=0)
    gain: float = key(1.1, "For low_throughput: how much faster is a cure.", gt=1)
    set: dict[str, Any] = key({}, "Settings of every trial.")
    rungs: list[Rung] = key(..., "The changes.", min_length=1)


@dataclass(frozen=True)
class Ladder:
    """A file that was read, in the order in which it is climbed."""

    config: LadderConfig
    rungs: tuple[Rung, ...]
    path: Path


def load_ladder(word: str) -> Ladder:
    """The shipped one of a symptom, or a file."""
    path = _SHIPPED / f"{word}.yaml" if word in SYMPTOMS else Path(word)
    if not path.is_file():
        do = f"name a symptom ({', '.join(SYMPTOMS)}), or a YAML file"
        raise UsageError(f"there is no ladder {word!r}", "flag --ladder", do)
    config = resolve(LadderConfig, read_layer(path, str(path))).config
    problems = [*_check(config, str(path))]
    if problems:
        raise ConfigError(problems=problems)
    ordered = sorted(config.rungs, key=lambda rung: PRICES.index(rung.price))
    return Ladder(config, tuple(ordered), path)


def condition(rung: Rung, where: str = "") -> Expression | None:
    return None if rung.when is None else parse(rung.when, where or f"rung {rung.name!r}")


def formula(value: Any, where: str) -> Expression | None:
    """What is computed; None: the value stands for itself."""
    return parse(value[1:].strip(), where) if isinstance(value, str) and value.startswith("=") else None


def _check(config: LadderConfig, where: str) -> list[Problem]:
    problems, names = [], [rung.name for rung in config.rungs]
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.append(Problem(f"two rungs are called {name!r}", where, "give each its own name"))
    for rung in config.rungs:
        place = f"{where}, rung {rung.name!r}"
        try:
            condition(rung, place)
            for value in rung.set.values():
                formula(value, place)
        except ConfigError as error:
            problems += error.problems
        if rung.when is not None and not rung.otherwise:
            problems.append(Problem("a condition without a reason", place, "say `otherwise: why it does not apply`"))
    return problems
