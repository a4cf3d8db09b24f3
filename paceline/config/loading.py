"""From layers of values to one typed configuration, with the origin of every value; all that is wrong is said at once.

    resolve(RunConfig, read_layer(path), ["train.max_steps=5"], {"launch.nproc": (2, "flag --nproc")})
    -> Resolved(config, origins={"train.max_steps": "override 'train.max_steps=5'", "run.seed": "default", …})

A default gives way to the file, the file to what was typed; an override and a flag for the same key must agree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from paceline.config.describe import Key, describe, describe_sections
from paceline.config.nearest import nearest, nearest_key
from paceline.config.overrides import check_text, parse_overrides
from paceline.config.sections import Section
from paceline.config.source import Entry, Layer, show
from paceline.errors import ConfigError, Problem

DEFAULT = "default"
"""The origin of a value that nobody gave."""

C = TypeVar("C", bound=Section)


@dataclass(frozen=True)
class Resolved(Generic[C]):
    """A configuration and where each of its values comes from."""

    config: C
    origins: dict[str, str]


def resolve(
    schema: type[C],
    base: Layer,
    overrides: Sequence[str] = (),
    flags: Mapping[str, tuple[Any, str]] | None = None,
    problems: Sequence[Problem] = (),
) -> Resolved[C]:
    """The configuration these layers make; `problems` found elsewhere are reported together with those found here."""
    keys, sections = describe(schema), describe_sections(schema)
    given = _Given()
    found = [*problems]
    typed = parse_overrides(overrides)
    for key, (value, origin) in (flags or {}).items():
        problem = check_text(value, f"{origin} '{value}'", "flag") if isinstance(value, str) else None
        if problem is None:
            typed.add(key, value, origin)
        else:
            typed.problems.append(problem)
    for layer in (base, typed):
        found += layer.problems
        for name, entry in layer.entries.items():
            leaf = _leaf_of(name, keys)
            if leaf is not None:
                given.put(leaf, name, entry)
            elif name in sections:
                # `train:` with nothing below it is how a file begins; `train=` asks for something that does not exist.
                if layer is typed or entry.value not in (None, {}):
                    found.append(_as_section(name, entry, keys))
            else:
                found.append(_unknown(name, entry, schema))
    try:
        # Values from YAML are JSON values; strict, or "5" would be a number and true would be 1.
        config = schema.model_validate_json(json.dumps(given.nested(keys)), strict=True)
    except ValidationError as error:
        raise ConfigError(problems=[*found, *_wrong_values(error, keys, given)]) from None
    if found:
        raise ConfigError(problems=found)
    return Resolved(config, {name: given.origin(name) for name in keys})


@dataclass
class _Given:
    """The values given for leaf keys, after precedence."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, list[str]] = field(default_factory=dict)

    def put(self, leaf: str, name: str, entry: Entry) -> None:
        if name == leaf:
            self.values[leaf], self.origins[leaf] = entry.value, [entry.origin]
            return
        # An entry of a mapping-valued key, such as launch.env.NCCL_DEBUG, joins those that are there.
        if not isinstance(self.values.get(leaf), dict):
            self.values[leaf], self.origins[leaf] = {}, []
        self.values[leaf] = self.values[leaf] | {name[len(leaf) + 1 :]: entry.value}
        if entry.origin not in self.origins[leaf]:
            self.origins[leaf].append(entry.origin)

    def origin(self, name: str) -> str:
        return ", ".join(self.origins.get(name, ())) or DEFAULT

    def nested(self, keys: Mapping[str, Key]) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        for name, value in self.values.items():
            *path, word = name.split(".")
            section = tree
            for part in path:
                section = section.setdefault(part, {})
            section[word] = _whole(value, keys[name].annotation)
        return tree


def _whole(value: Any, annotation: Any) -> Any:
    """1e3 is written like a float and is a good integer."""
    if isinstance(value, float) and value.is_integer() and not _mentions(annotation, float):
        return int(value)
    return value


def _mentions(annotation: Any, kind: Any) -> bool:
    return annotation is kind or any(_mentions(argument, kind) for argument in get_args(annotation))


def _leaf_of(name: str, keys: Mapping[str, Key]) -> str | None:
    """The leaf key that `name` is, or is an entry of."""
    if name in keys:
        return name
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        leaf = ".".join(parts[:length])
        if leaf in keys and _is_mapping(keys[leaf].annotation):
            return leaf
    return None


def _is_mapping(annotation: Any) -> bool:
    return get_origin(annotation) is dict or any(_is_mapping(argument) for argument in get_args(annotation))


def _as_section(name: str, entry: Entry, keys: Mapping[str, Key]) -> Problem:
    inside = [key for key in keys if key.startswith(f"{name}.")]
    what = f"{name} is a section with keys of its own, not a value (it was given {show(entry.value)})"
    return Problem(what, entry.origin, f"set one of its keys: {', '.join(inside[:6])}{' …' if len(inside) > 6 else ''}")


def _unknown(name: str, entry: Entry, schema: type[Section]) -> Problem:
    keys, sections = describe(schema), describe_sections(schema)
    found = nearest_key(name, keys) or nearest(name, sections)
    if found is None:
        top = [section for section in sections if "." not in section]
        return Problem(f"there is no key {name}", entry.origin, f"use one of the sections {', '.join(top)}")
    do = f"use one of the keys of the section {found}"
    if found in keys:
        takes = _takes(schema, found, entry)
        do = f"set {found}={show(entry.value)}" if takes else f"set {found} to {keys[found].allowed}"
    return Problem(f"there is no key {name}; did you mean {found}?", entry.origin, f"{do}, or remove it")


def _takes(schema: type[Section], name: str, entry: Entry) -> bool:
    """Whether the key takes that value; what else the configuration lacks is no matter."""
    alone, keys = _Given(), describe(schema)
    alone.put(name, name, entry)
    try:
        schema.model_validate_json(json.dumps(alone.nested(keys)), strict=True)
    except ValidationError as error:
        path = name.split(".")
        return not any([str(part) for part in detail["loc"]][: len(path)] == path for detail in error.errors())
    return True


def _wrong_values(error: ValidationError, keys: Mapping[str, Key], given: _Given) -> list[Problem]:
    """One problem per key, however many alternatives of its type have been tried."""
    by_key: dict[str, list[ErrorDetails]] = {}
    for detail in error.errors():
        parts = [str(part) for part in detail["loc"]]
        prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        name = next((prefix for prefix in prefixes if prefix in keys), ".".join(parts))
        by_key.setdefault(name, []).append(detail)
    return [_wrong_value(name, details, keys.get(name), given) for name, details in by_key.items()]


def _wrong_value(name: str, details: list[ErrorDetails], key: Key | None, given: _Given) -> Problem:
    own_rule = next((d for d in details if d["type"] in {"value_error", "assertion_error"}), None)
    if key is None:  # a rule of a whole section
        reason = str((own_rule or details[0]).get("ctx", {}).get("error", details[0]["msg"]))
        names = [n for n in given.origins if n.startswith(f"{name}.") or not name]
        return Problem(reason, " and ".join(dict.fromkeys(given.origin(n) for n in names)), "")
    if name not in given.values:
        return Problem(f"{name} is missing", "", f"set {name} to {key.allowed} ({key.sentence})")
    value = given.values[name]
    written = f"{name}={show(value)}"
    if own_rule is not None:
        reason = own_rule.get("ctx", {}).get("error", own_rule["msg"])
        return Problem(f"{written}: {reason}", given.origin(name), _instead(key, value))
    return Problem(f"{written} must be {key.allowed}", given.origin(name), _instead(key, value))


_BOOLEAN_WORDS = {"yes": "true", "on": "true", "no": "false", "off": "false"}


def _instead(key: Key, value: Any) -> str:
    if isinstance(value, str):
        close = _BOOLEAN_WORDS.get(value.lower()) if "true or false" in key.allowed else None
        close = close or nearest(value, key.choices)
        if close:
            return f"set {key.name}={close}"
    return f"give another value, or leave it out for the default, {show(key.default)}"
