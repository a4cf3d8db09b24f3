"""Reads YAML into a flat layer, `dotted key -> (value, origin)`, where the origin of each value is its `file:line`.

Scalars are those of YAML 1.2: only `true` and `false` are booleans, `1e-3` is a number, `on` and `yes` are words.

    read_layer(Path("a.yaml")).entries["train.max_steps"]   -> Entry(value=500, origin="a.yaml:12")
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from yaml.composer import ComposerError

from paceline.errors import ConfigError, Problem, UsageError


class Entry(NamedTuple):
    """A value and where it was said."""

    value: Any
    origin: str


@dataclass
class Layer:
    """The values of one source and what was wrong with it; problems wait here so that all of them are reported together."""

    entries: dict[str, Entry] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def add(self, key: str, value: Any, origin: str) -> None:
        """Adds a value; the same key with another value is a problem, whoever says it last."""
        known = self.entries.get(key)
        if known is None:
            self.entries[key] = Entry(value, origin)
        elif type(known.value) is not type(value) or known.value != value:
            what = f"{key} is given twice, as {show(known.value)} and as {show(value)}"
            self.problems.append(Problem(what, f"{known.origin} and {origin}", "keep one of them"))


_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")


def show(value: Any) -> str:
    """A value on one line, as one would type it: reading it again gives the same value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and plain_scalar(value) == value else _quoted(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(show(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{show(str(key))}: {show(item)}' for key, item in value.items())}}}"
    return repr(value)


def _quoted(text: str) -> str:
    quoted: str = yaml.safe_dump(text, default_style='"', allow_unicode=True, width=float("inf"))
    return quoted.rstrip("\n")


class _Loader(yaml.SafeLoader):
    """PyYAML's parser with YAML 1.2's scalars."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        tag = getattr(event, "tag", None)
        if tag:
            raise ComposerError(None, None, f"tags have no meaning here ({tag})", event.start_mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        return node


for _tag, _pattern, _first in (
    ("null", r"^(?:~|null|Null|NULL|)$", [*"~nN", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", [*"tTfF"]),
    ("int", r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$", [*"-+0123456789"]),
    (
        "float",
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        [*"-+.0123456789"],
    ),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)

_resolver = _Loader("")


def plain_scalar(text: str) -> Any:
    """The value of an unquoted scalar: null, a boolean, a number, or the text itself."""
    tag: str = _resolver.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    return _scalar(tag, text)


def _scalar(tag: str, text: str) -> Any:
    match tag.rpartition(":")[2]:
        case "null":
            return None
        case "bool":
            return text.lower() == "true"
        case "int":
            # Longer than any number that means something here; Python itself refuses thousands of digits.
            return int(text, 0) if text[:2] in {"0x", "0o"} else int(text) if len(text) < 100 else text
        case "float":
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        case _:
            return text


Locate = Callable[[yaml.Node], str]
"""The origin of a node."""


def flatten(node: yaml.Node, prefix: str, locate: Locate, layer: Layer) -> None:
    """Adds everything below `node` to the layer; a mapping becomes one key per entry, an empty one stays a value."""
    _flatten(node, prefix, locate, layer, frozenset())


def _flatten(node: yaml.Node, prefix: str, locate: Locate, layer: Layer, above: frozenset[int]) -> None:
    if not isinstance(node, yaml.MappingNode) or (prefix and not node.value):
        layer.add(prefix, _value(node, above), locate(node))
        return
    if id(node) in above:
        layer.problems.append(Problem(f"{prefix} contains itself", locate(node), "remove the alias"))
        return
    seen: dict[str, str] = {}
    for key_node, value_node in node.value:
        origin = locate(key_node)
        if not isinstance(key_node, yaml.ScalarNode) or not key_node.value:
            layer.problems.append(Problem("a key must be a word", origin, "write section: {key: value}"))
            continue
        key = f"{prefix}.{key_node.value}" if prefix else key_node.value
        if key in seen:
            what = f"{key} is given twice in the same mapping"
            layer.problems.append(Problem(what, f"{seen[key]} and {origin}", "keep one of them"))
            continue
        seen[key] = origin
        _flatten(value_node, key, locate, layer, above | {id(node)})


def _value(node: yaml.Node, above: frozenset[int] = frozenset()) -> Any:
    if id(node) in above:
        return None
    inside = above | {id(node)}
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, inside) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        return {str(key.value): _value(item, inside) for key, item in node.value}
    return _scalar(node.tag, node.value)


def compose(text: str) -> yaml.Node | None:
    """The node tree of a YAML document, with line marks."""
    root: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    return root


def read_layer(path: Path, shown: str | None = None) -> Layer:
    """The values of a YAML file; `shown` is how messages name it."""
    name = shown or str(path)
    try:
        root = compose(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError("there is no such configuration file", name, "check the path") from None
    except OSError as error:
        raise UsageError(f"cannot read the configuration ({error.strerror})", name, "check the path") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the file is not UTF-8 text (byte {error.start})", name, "save it as UTF-8") from error
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        what = f"this is not valid YAML: {error.problem or error.context}"
        raise ConfigError(what, f"{name}{line}", "check indentation, quotes and brackets there") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"this is not valid YAML: {error}", name, "check the file") from error
    if root is None:
        raise ConfigError("the configuration file is empty", name, "begin with a line such as `recipe: sasrec`")
    if not isinstance(root, yaml.MappingNode):
        what = "a configuration is a mapping of sections, this is something else"
        raise ConfigError(what, f"{name}:{root.start_mark.line + 1}", "begin with a line such as `recipe: sasrec`")
    layer = Layer()
    flatten(root, "", lambda node: f"{name}:{node.start_mark.line + 1}", layer)
    return layer
