"""What differs between two resolved configurations, in words that a person and an event can keep.

str(find_changes(settings_in(old_text), settings_in(new_text), numerics)[0])   -> "precision.mode: auto → bf16 (numerics)"
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from paceline.config.fingerprint import differing
from paceline.config.source import Layer, compose, flatten, show

_LONGEST = 60


class Change(NamedTuple):
    """One value that differs; as a text, `key: old → new`."""

    key: str
    old: Any
    new: Any
    is_numeric: bool
    """it changes digits, not the training"""

    def __str__(self) -> str:
        return f"{self.key}: {_shown(self.old)} → {_shown(self.new)}{' (numerics)' if self.is_numeric else ''}"


def settings_in(text: str) -> dict[str, Any]:
    """The values of a resolved configuration by their dotted keys; none where the text cannot be read."""
    return {key: value for key, value in values_in(text).items() if value != {}}


def values_in(text: str) -> dict[str, Any]:
    """The same with those that are empty mappings, such as launch.env."""
    layer = Layer()
    try:
        root = compose(text)
    except yaml.YAMLError:
        return {}
    if isinstance(root, yaml.MappingNode):
        flatten(root, "", lambda _: "", layer)
    return {key: entry.value for key, entry in layer.entries.items()}


def load_settings(file: Path) -> dict[str, Any]:
    """The settings in a run's config.yaml; none where it cannot be read, as after a launcher that died before it wrote them."""
    try:
        return settings_in(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return {}


def changed_settings(old: Mapping[str, Any], text: str, numerics: Collection[str]) -> list[Change]:
    """What a configuration changes of earlier settings; nothing where those are not known.

    `run.out` is left out: whatever it says, it led to where the run is.
    """
    found = find_changes(old, settings_in(text), numerics) if old else []
    return [change for change in found if change.key != "run.out"]


def find_changes(old: Mapping[str, Any], new: Mapping[str, Any], numerics: Collection[str] = ()) -> list[Change]:
    """Every value that differs; `numerics` are the keys that change digits."""
    return [Change(key, before, after, key in numerics) for key, before, after in differing(old, new)]


def list_changes(head: str, changes: Iterable[Change]) -> str:
    """A sentence, and below it what differs, one line each."""
    return "\n    ".join([head, *map(str, changes)])


def _shown(value: Any) -> str:
    text = show(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
