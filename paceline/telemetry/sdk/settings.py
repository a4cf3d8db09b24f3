"""A configuration of somebody else's as a run directory keeps it: plain values, YAML, origins, identity.

settings = plain_settings(vars(arguments))
to_yaml(settings)      -> 'lr: 0.1\\nmodel:\\n  width: 64\\n'
flatten(settings)      -> {"lr": 0.1, "model.width": 64}
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from paceline.errors import ConfigError
from paceline.telemetry.run_file import SDK_RECIPE

_PLAIN_KEY = re.compile(r"[A-Za-z_][\w.-]*")
_NOT_PLAIN = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
_MOST_DEEP = 100
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def plain_settings(config: Any) -> dict[str, Any]:
    """A mapping, a dataclass or a namespace as a dictionary that JSON can hold; what it cannot is kept as its text.

    As every configuration it names its recipe, unless it has a key of that name for something else.
    """
    plain = _plain({} if config is None else config, "", ())
    if not isinstance(plain, dict):
        what = f"a configuration is a dictionary, not {type(config).__name__}"
        raise ConfigError(what, "start_run(config=…)", "give a dictionary, a dataclass, or vars(arguments)")
    return {"recipe": SDK_RECIPE} | plain


def identity_value(value: Any) -> Any:
    """The value as run.json compares it: JSON has no number that is not finite, and one of them does not equal itself."""
    if isinstance(value, dict):
        return {key: identity_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [identity_value(item) for item in value]
    return _scalar(value) if isinstance(value, float) and not math.isfinite(value) else value


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every value by its dotted key."""
    values: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            values |= flatten(value, f"{prefix}{key}.")
        else:
            values[f"{prefix}{key}"] = value
    return values


def identify(settings: Mapping[str, Any], may_change: Collection[str]) -> dict[str, Any]:
    """What makes this run this run: every value, but for those that may change from one attempt to the next."""
    values = {k: identity_value(value) for k, value in flatten(settings).items() if not _is_covered(k, may_change)}
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return {
        "fingerprint": hashlib.sha256(canonical.encode()).hexdigest(),
        "values": dict(sorted(values.items())),
        "may_change": sorted(may_change),
    }


def check_may_change(may_change: Collection[str], settings: Mapping[str, Any]) -> None:
    """Every name must be a key or a section of the configuration."""
    keys = flatten(settings)
    if isinstance(may_change, str) or not isinstance(may_change, Collection):
        what = f"may_change={may_change!r} is not a list of names"
        do = f"write may_change=[{may_change!r}]" if isinstance(may_change, str) else "write may_change=['epochs']"
        raise ConfigError(what, "start_run(may_change=…)", do)
    for name in may_change:
        if not isinstance(name, str):
            do = "name keys of the configuration, with dots for sections"
            raise ConfigError(f"{name!r} in may_change is not the name of a key", "start_run(may_change=…)", do)
        if not any(_is_covered(key, [name]) for key in keys):
            near = difflib.get_close_matches(name, keys, 1)
            do = f"write {near[0]!r}" if near else "name keys of the configuration, with dots for sections"
            raise ConfigError(f"the configuration has no key {name!r}", "start_run(may_change=…)", do)


def differing(
    old: Mapping[str, Any], new: Mapping[str, Any], may_change: Collection[str] = ()
) -> list[tuple[str, Any, Any]]:
    """(key, old, new) of what differs, but for what may."""
    keys = (key for key in sorted(old.keys() | new.keys()) if not _is_covered(key, may_change))
    return [(key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]


def to_yaml(settings: Mapping[str, Any]) -> str:
    """Every key on its own line; YAML of any version reads the same values back."""
    return "".join(f"{line}\n" for line in _lines(settings, ""))


def read_lines(text: str) -> dict[str, str]:
    """The texts of the values that `to_yaml` wrote, by their dotted keys."""
    values: dict[str, str] = {}
    sections: list[str] = []
    for line in text.splitlines():
        key, _, value = line.strip().partition(": ")
        sections = sections[: (len(line) - len(line.lstrip())) // 2]
        if value:
            values[".".join([*sections, key])] = value
        else:
            sections.append(key.removesuffix(":"))
    return values


def _is_covered(key: str, names: Collection[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


def _plain(value: Any, key: str, around: tuple[int, ...]) -> Any:
    """`key` is the dotted one of the value, `around` are the objects that it lies in."""
    if isinstance(value, bool) or value is None or type(value) in (int, float):
        return value
    if id(value) in around or len(around) > _MOST_DEEP:
        what = f"the configuration contains itself at {key!r}, or lies more than {_MOST_DEEP} sections deep"
        raise ConfigError(what, "start_run(config=…)", "leave that out, or give a name for it")
    around = (*around, id(value))
    if isinstance(value, Mapping):
        return {_readable(name, key): _plain(item, _join(key, name), around) for name, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: _plain(getattr(value, name), _join(key, name), around) for name in names}
    if isinstance(value, (list, tuple)):
        return [_plain(item, key, around) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item, key, around) for item in value), key=str)
    if type(value).__name__ == "Namespace" and hasattr(value, "__dict__"):
        return _plain(vars(value), key, around)
    if type(value) is str:
        return _readable(value, key)
    # An address in memory is another one at every start, and would make it another run.
    return _ADDRESS.sub("", _readable(value, key))


def _join(key: str, name: object) -> str:
    return f"{key}.{name}" if key else str(name)


def _readable(value: object, key: str) -> str:
    """Its text, which a file must be able to hold."""
    try:
        text = str(value)
        text.encode()
    except Exception as error:
        what = f"{key or 'a key'} of the configuration has no text that can be written: {type(error).__name__}: {error}"
        raise ConfigError(what, "start_run(config=…)", "give another value, or leave it out") from error
    return text


def _lines(settings: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            yield f"{indent}{_key(key)}:"
            yield from _lines(value, f"{indent}  ")
        else:
            yield f"{indent}{_key(key)}: {_scalar(value)}"


def _key(key: str) -> str:
    is_plain = _PLAIN_KEY.fullmatch(key) and key.lower() not in _NOT_PLAIN
    return key if is_plain else json.dumps(key, ensure_ascii=False)


def _scalar(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_scalar(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(key)}: {_scalar(item)}' for key, item in value.items())}}}"
    if isinstance(value, float):
        if not math.isfinite(value):
            return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
        text = repr(value)
        return text if "." in text or "e" not in text else text.replace("e", ".0e")  # 1e-08 is a text in YAML 1.1
    return json.dumps(value, ensure_ascii=False)
