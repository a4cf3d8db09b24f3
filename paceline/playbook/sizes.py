"""Numbers that phases of a playbook share, chosen by the configuration and the machine, and the formulas that use them.

    sizes:
      - {when: num_gpus > 0, steps: 200}        # the first that holds
      - {steps: 40}
    phases:
      A: {kind: sweep, steps: = steps}          # 40 without a GPU; `sizes.steps=10` typed comes before both
      B: {kind: train, set: {train.global_batch: = train.global_batch / world_size}}

A formula may use every key of the configuration, world_size, num_gpus and threads (cores of a rank).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.config.expression import parse
from paceline.config.nearest import nearest
from paceline.config.source import Entry
from paceline.errors import ConfigError, PacelineError, Problem
from paceline.playbook.condition import check_condition, holds

FORMULA = "="


def choose_sizes(written: Mapping[str, Entry], typed: Mapping[str, Entry], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The first set whose condition holds, with what was typed; ConfigError where none does, or a name is unknown."""
    listed = written.get("sizes")
    origin = next((entry.origin for entry in written.values()), "sizes")
    sets = [{name.removeprefix("sizes."): entry.value for name, entry in written.items()}]
    if listed is not None:
        if not isinstance(listed.value, list) or not all(isinstance(each, dict) for each in listed.value):
            raise ConfigError("`sizes` is a mapping of numbers, or a list of them", origin, "write sizes: {steps: 200}")
        sets = listed.value
    wrong = [problem for each in sets if "when" in each for problem in check_condition(str(each["when"]), origin)]
    if wrong:
        raise ConfigError(problems=wrong)
    chosen = next((each for each in sets if "when" not in each or holds(str(each["when"]), facts, origin)), None)
    if chosen is None:
        raise ConfigError("no set of sizes holds here", origin, "add one without `when` at the end")
    known = {name: value for name, value in chosen.items() if name != "when"}
    problems = []
    for key, entry in typed.items():
        name = key.removeprefix("sizes.")
        if name not in known:
            close = nearest(name, known)
            what = f"there is no size {name}" + (f"; did you mean {close}?" if close else "")
            problems.append(Problem(what, entry.origin, f"use one of {', '.join(known)}"))
        elif isinstance(entry.value, bool) or not isinstance(entry.value, int | float):
            problems.append(Problem(f"{key}={entry.value} is not a number", entry.origin, "give a number"))
        elif isinstance(known[name], int) and (not isinstance(entry.value, int) or entry.value < 1):
            what = f"{key}={entry.value} must be an integer >= 1"
            problems.append(Problem(what, entry.origin, f"leave it out for the default here, {known[name]}"))
        known[name] = entry.value
    if problems:
        raise ConfigError(problems=problems)
    return known


def is_formula(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(FORMULA)


def compute(value: str, known: Mapping[str, Any], where: str) -> Any:
    """The value of a formula; whole numbers where it is one, or where dividing left a rest of samples or steps."""
    expression = parse(value.removeprefix(FORMULA).strip(), where)
    try:
        result = expression.evaluate(known)
    except PacelineError as error:
        raise ConfigError(problems=[Problem(p.what, where, p.do) for p in error.problems]) from None
    is_whole = isinstance(result, float) and result >= 1 and (result.is_integer() or "/" in value)
    return int(result) if is_whole else result
