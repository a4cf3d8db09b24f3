"""Overrides on a command line: `section.key=value`, split at the first `=`, the value as YAML would read it.

parse_overrides(["train.max_steps=5"]).entries   -> {"train.max_steps": Entry(5, "override 'train.max_steps=5'")}
"""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from paceline.config.source import Layer, compose, flatten, plain_scalar
from paceline.errors import Problem


def parse_overrides(texts: Sequence[str]) -> Layer:
    """One layer of all overrides; a key given twice with different values is a problem, not a matter of order."""
    layer = Layer()
    for text in texts:
        origin = f"override '{text}'"
        key, equals, value = text.partition("=")
        key = key.strip()
        problem = check_text(text, origin, "override")
        if problem is not None:
            layer.problems.append(problem)
        elif not equals:
            layer.problems.append(Problem(f"'{text}' has no value", origin, f"write {key or 'section.key'}=VALUE"))
        elif not key or key.startswith(".") or key.endswith(".") or ".." in key:
            layer.problems.append(Problem(f"'{text}' names no key", origin, "write section.key=VALUE"))
        else:
            _add(key, value.strip(), origin, layer)
    return layer


def check_text(text: str, where: str, kind: str) -> Problem | None:
    """What is wrong with an override or a flag whose bytes on the command line were no UTF-8: Python gives such as surrogates."""
    if not any("\ud800" <= letter <= "\udfff" for letter in text):
        return None
    what = f"this {kind} is not UTF-8 text, so that config.yaml could not hold it"
    return Problem(
        what, where.encode(errors="backslashreplace").decode(), "write it in UTF-8, or rename the file it names"
    )


def _add(key: str, value: str, origin: str, layer: Layer) -> None:
    # Only what opens a collection or a quote is parsed as such: a path or a sentence may contain `: ` or `#`.
    if not value.startswith(("[", "{", '"', "'")):
        layer.add(key, plain_scalar(value), origin)
        return
    try:
        node = compose(value)
    except yaml.YAMLError as error:
        reason = getattr(error, "problem", None) or "it is not valid YAML"
        what = f"the value of {key} cannot be read: {reason}"
        layer.problems.append(Problem(what, origin, "close the bracket or quote, or quote the whole value"))
        return
    assert node is not None
    flatten(node, key, lambda _: origin, layer)
