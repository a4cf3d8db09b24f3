"""A small, safe expression over dotted names: what a sweep leaves out, what a playbook's gate asks for.

    parse("samples_per_s >= 0.92 * baseline.samples_per_s and failures == 0").evaluate({"samples_per_s": 93, …})   -> True

Names, numbers, texts in quotes, true, false and null; comparison, and/or/not, + - * /, parentheses. Nothing is ever executed: there are
no calls, no attributes, no indexing. An error points at the column.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.config.nearest import nearest_key
from paceline.errors import ConfigError

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)(?![\w.])
    |(?P<name>[A-Za-z_]\w*(?:\.\w+)*)
    |(?P<text>'[^']*'|"[^"]*")
    |(?P<sign>==|!=|<=|>=|[-+*/()<>])
    )""",
    re.VERBOSE,
)
_WORDS = {"true": True, "false": False, "null": None}
_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_DEEPEST = 50


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    column: int
    """from 1"""


_Values = Mapping[str, Any]
_Node = Callable[[_Values], Any]


@dataclass(frozen=True)
class Unknown:
    """Stands for a value of which only the kind is known yet: what `Expression.check` computes with."""

    kind: type
    """bool, float or str"""


@dataclass(frozen=True)
class Expression:
    """A parsed expression."""

    text: str
    names: frozenset[str]
    """every dotted name it asks for"""
    where: str
    _node: _Node

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Its value; ConfigError, with the column, where a name is missing or the kinds of two values do not go together."""
        return self._node(values)

    def holds(self, values: Mapping[str, Any]) -> bool:
        """The same, where it must be true or false."""
        value = self.evaluate(values)
        if _kind(value) is not bool:
            what = f"`{self.text}` is {_shown(value)}, which is neither true nor false"
            raise ConfigError(what, self.where, "compare it with something: ==, !=, <, <=, > or >=")
        return bool(value)

    def check(self, kinds: Mapping[str, type]) -> None:
        """ConfigError where it cannot be a condition, whatever its names stand for: the kind of each is all that is known."""
        self.holds({name: Unknown(kind) for name, kind in kinds.items()})


def _kind(value: Any) -> type:
    kind = value.kind if isinstance(value, Unknown) else type(value)
    return float if kind is int else kind


def _shown(value: Any) -> str:
    words = {bool: "true or false", float: "a number", str: "a text"}
    return words[value.kind] if isinstance(value, Unknown) else repr(value)


def parse(text: str, where: str = "") -> Expression:
    """The expression; ConfigError with the column where it is none. `where` says who wrote it."""
    place = where or f"`{text}`"
    parser = _Parser(text, place)
    node = parser.whole()
    return Expression(text, frozenset(parser.names), place, node)


class _Parser:
    """From tokens to nested functions, one level of precedence each."""

    def __init__(self, text: str, where: str) -> None:
        self._text = text
        self._where = where
        self._tokens = list(self._read())
        self._place = 0
        self._depth = 0
        self.names: set[str] = set()

    def whole(self) -> _Node:
        node = self._either()
        if self._now.kind != "end":
            raise self._wrong(f"{self._now.text!r} was not expected", self._now.column)
        return node

    def _read(self) -> Iterator[_Token]:
        place = 0
        while self._text[place:].strip():
            match = _TOKEN.match(self._text, place)
            if match is None:
                column = place + len(self._text[place:]) - len(self._text[place:].lstrip()) + 1
                raise self._wrong(f"{self._text[column - 1]!r} means nothing here", column)
            kind = str(match.lastgroup)
            yield _Token(kind, match[kind], match.start(kind) + 1)
            place = match.end()
        yield _Token("end", "the end", len(self._text) + 1)

    @property
    def _now(self) -> _Token:
        return self._tokens[self._place]

    def _take(self, *texts: str) -> _Token | None:
        token = self._now
        if token.kind in ("sign", "name") and token.text in texts:
            self._place += 1
            return token
        return None

    def _either(self) -> _Node:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._wrong("there are too many parentheses inside each other", self._now.column)
        node = self._both()
        while token := self._take("or"):
            node = self._logic(node, self._both(), token, until=True)
        self._depth -= 1
        return node

    def _both(self) -> _Node:
        node = self._negation()
        while token := self._take("and"):
            node = self._logic(node, self._negation(), token, until=False)
        return node

    def _logic(self, left: _Node, right: _Node, token: _Token, *, until: bool) -> _Node:
        def evaluate(values: _Values) -> Any:
            first = self._truth(left(values), token)
            if first is until:
                return first
            second = self._truth(right(values), token)
            return first if isinstance(first, Unknown) else second

        return evaluate

    def _negation(self) -> _Node:
        tokens = []
        while token := self._take("not"):
            tokens.append(token)
        node = self._comparison()
        for token in reversed(tokens):
            node = self._negated(node, token)
        return node

    def _negated(self, node: _Node, token: _Token) -> _Node:
        def evaluate(values: _Values) -> Any:
            value = self._truth(node(values), token)
            return value if isinstance(value, Unknown) else not value

        return evaluate

    def _comparison(self) -> _Node:
        left = self._sum()
        token = self._take(*_COMPARISONS)
        if token is None:
            return left
        right = self._sum()
        if self._now.text in _COMPARISONS:
            raise self._wrong("one comparison at a time", self._now.column, "join two with `and`")
        return lambda values: self._compare(left(values), right(values), token)

    def _sum(self) -> _Node:
        node = self._product()
        while token := self._take("+", "-"):
            node = self._arithmetic(node, self._product(), token)
        return node

    def _product(self) -> _Node:
        node = self._signed()
        while token := self._take("*", "/"):
            node = self._arithmetic(node, self._signed(), token)
        return node

    def _signed(self) -> _Node:
        tokens = []
        while token := self._take("-", "+"):
            tokens.append(token)
        node = self._atom()
        for token in reversed(tokens):
            node = self._arithmetic(lambda values: 0, node, token)
        return node

    def _atom(self) -> _Node:
        token = self._now
        if self._take("("):
            node = self._either()
            if not self._take(")"):
                raise self._wrong(f"a parenthesis is not closed before {self._now.text!r}", self._now.column)
            return node
        if token.kind == "number":
            number = float(token.text) if not token.text.isdecimal() else int(token.text)
            value: Any = number
        elif token.kind == "text":
            value = token.text[1:-1]
        elif token.kind == "name" and token.text not in ("and", "or", "not"):
            if token.text not in _WORDS:
                self._place += 1
                self.names.add(token.text)
                return lambda values: self._look_up(token, values)
            value = _WORDS[token.text]
        else:
            raise self._wrong(f"a name or a value was expected, not {token.text!r}", token.column)
        self._place += 1
        return lambda values: value

    def _look_up(self, token: _Token, values: _Values) -> Any:
        if token.text in values:
            return values[token.text]
        near = nearest_key(token.text, values)
        do = f"use {near}" if near else f"use one of: {', '.join(sorted(values)[:12]) or 'nothing is known'}"
        raise self._wrong(f"there is no {token.text} here", token.column, do)

    def _truth(self, value: Any, token: _Token) -> Any:
        if _kind(value) is not bool:
            raise self._wrong(f"{_shown(value)} is neither true nor false, as `{token.text}` needs it", token.column)
        return value

    def _compare(self, left: Any, right: Any, token: _Token) -> Any:
        is_unknown = isinstance(left, Unknown) or isinstance(right, Unknown)
        if token.text in ("==", "!="):
            if is_unknown:
                return Unknown(bool)
            # true is not 1 here: a key that takes true has another meaning than one that takes a number.
            is_equal = isinstance(left, bool) == isinstance(right, bool) and left == right
            return is_equal == (token.text == "==")
        is_text = _kind(left) is str and _kind(right) is str
        if not is_text:
            left, right = self._number(left, token), self._number(right, token)
        if is_unknown:
            return Unknown(bool)
        verdict = {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[token.text]
        return bool(verdict)

    def _arithmetic(self, left: _Node, right: _Node, token: _Token) -> _Node:
        def evaluate(values: _Values) -> Any:
            a, b = self._number(left(values), token), self._number(right(values), token)
            if isinstance(a, Unknown) or isinstance(b, Unknown):
                return Unknown(float)
            if token.text == "/" and b == 0:
                raise self._wrong("division by zero", token.column)
            result = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else 0}[token.text]
            if math.isinf(result) and not (math.isinf(a) or math.isinf(b)):
                raise self._wrong("the number is too large", token.column)
            return result

        return evaluate

    def _number(self, value: Any, token: _Token) -> Any:
        if _kind(value) is not float:
            raise self._wrong(f"{_shown(value)} is not a number, as `{token.text}` needs it", token.column)
        return value

    def _wrong(self, what: str, column: int, do: str = "") -> ConfigError:
        pointed = f"{self._text[: column - 1]}⟶{self._text[column - 1 :]}"
        return ConfigError(f"{what} (column {column} of `{pointed}`)", self._where, do or "mend the expression")
