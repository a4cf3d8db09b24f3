"""Walks a schema: every dotted key with its type in words, its default, its sentence and its fingerprint class.

describe(RunConfig)["train.max_steps"].allowed   -> "an integer >= 1 or null"
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from paceline.config.sections import OPERATIONAL, Section


@dataclass(frozen=True)
class Key:
    """One key of a schema."""

    name: str
    """dotted"""
    annotation: Any
    allowed: str
    """what it takes, in words"""
    choices: tuple[str, ...]
    """the words it takes"""
    default: Any
    """None, too, where there is none"""
    sentence: str
    fingerprint: str


@functools.cache
def describe(schema: type[Section]) -> Mapping[str, Key]:
    """Every leaf key of the schema, in its order."""
    return {key.name: key for key in _walk(schema, "")}


@functools.cache
def describe_sections(schema: type[Section]) -> Mapping[str, str]:
    """Every section of the schema, nested ones too, with its sentence."""
    return dict(_walk_sections(schema, ""))


def value_at(config: BaseModel, name: str) -> Any:
    """The value of a dotted key."""
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def section_type(field: FieldInfo) -> type[BaseModel] | None:
    annotation = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _walk(section: type[BaseModel], prefix: str) -> Iterator[Key]:
    for word, field in section.model_fields.items():
        nested = section_type(field)
        if nested:
            yield from _walk(nested, f"{prefix}{word}.")
            continue
        extra = field.json_schema_extra
        fingerprint = extra.get("fingerprint", OPERATIONAL) if isinstance(extra, dict) else OPERATIONAL
        yield Key(
            name=f"{prefix}{word}",
            annotation=field.annotation,
            allowed=_in_words(field.annotation, field.metadata),
            choices=tuple(_choices(field.annotation)),
            default=None if field.is_required() else field.get_default(call_default_factory=True, validated_data={}),
            sentence=field.description or "",
            fingerprint=str(fingerprint),
        )


def _walk_sections(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
    for word, field in section.model_fields.items():
        nested = section_type(field)
        if nested:
            yield f"{prefix}{word}", field.description or ""
            yield from _walk_sections(nested, f"{prefix}{word}.")


_WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "a text", NoneType: "null", Any: "anything"}
_PLURALS = {bool: "booleans", int: "integers", float: "numbers", str: "texts", Any: "values"}


def _in_words(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    annotation, inner = _unwrap(annotation)
    metadata = [*metadata, *inner]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        # A bound on a union is a bound on its numbers: `int | None` with ge=1.
        return _one_of([_in_words(argument, metadata) for argument in arguments])
    if origin is Literal:
        return _one_of([str(choice) for choice in arguments])
    if origin in (list, set, frozenset, tuple, dict):
        return _collection(origin, arguments, metadata)
    # A text of a certain form is called by what the schema writes beside its type.
    called = next((extra for extra in metadata if isinstance(extra, str)), None) if annotation is str else None
    words = called or _WORDS.get(annotation, f"a {getattr(annotation, '__name__', annotation)}")
    bounds = _bounds(metadata) if annotation in (int, float) else ""
    return f"{words} {bounds}".strip()


def _collection(origin: Any, arguments: tuple[Any, ...], metadata: list[Any]) -> str:
    if origin is dict:
        return "a mapping of names to values"
    items = [argument for argument in arguments if argument is not Ellipsis]
    item, inner = _unwrap(items[0] if items else Any)
    noun = f"{_PLURALS.get(item, 'values')} {_bounds(inner)}".strip()
    if get_origin(item) is Literal:
        noun = f"{noun}, each {_in_words(item)}"
    if origin is tuple and Ellipsis not in arguments:
        return f"a list of {len(items)} {noun}"
    lengths = [f"at least {m.min_length}" for m in metadata if isinstance(m, annotated_types.MinLen)]
    return f"a list of {' '.join([*lengths, noun])}"


def _unwrap(annotation: Any) -> tuple[Any, list[Any]]:
    """The bare type and its constraints: `Annotated[int, Field(ge=1)]` -> int, [Ge(1)]."""
    if get_origin(annotation) is not Annotated:
        return annotation, []
    bare, *extras = get_args(annotation)
    constraints: list[Any] = []
    for extra in extras:
        constraints += extra.metadata if isinstance(extra, FieldInfo) else [extra]
    return bare, constraints


_SIGNS = (
    (annotated_types.Ge, ">=", "ge"),
    (annotated_types.Gt, ">", "gt"),
    (annotated_types.Le, "<=", "le"),
    (annotated_types.Lt, "<", "lt"),
)


def _bounds(metadata: Iterable[Any]) -> str:
    found = [f"{sign} {getattr(m, name)}" for m in metadata for kind, sign, name in _SIGNS if isinstance(m, kind)]
    return " and ".join(found)


def _choices(annotation: Any) -> Iterator[str]:
    annotation, _ = _unwrap(annotation)
    if get_origin(annotation) is Literal:
        yield from (choice for choice in get_args(annotation) if isinstance(choice, str))
    elif get_origin(annotation) in (Union, UnionType):
        for argument in get_args(annotation):
            yield from _choices(argument)


def _one_of(alternatives: list[str]) -> str:
    return alternatives[0] if len(alternatives) == 1 else f"{', '.join(alternatives[:-1])} or {alternatives[-1]}"
