"""docs/troubleshooting.md: every message on it is one that the code can say, and every error, finding and known message is on it.

python -m tests.docs.test_troubleshooting      # prints the table of known messages, to be pasted at the page's end
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

import pytest
import yaml

from paceline import errors
from paceline.diagnose.finding import KINDS
from tests.architecture.rooms import PACKAGE, ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
GAP = "…"
OURS, FINDINGS, OTHERS = PAGE.partition("## Findings")[0], "## Findings", "## Messages of torch"
MESSAGES = re.findall(r"^\| `([^`]+)` \|", OURS, re.MULTILINE)
ERRORS = [name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)]


@functools.cache
def said() -> frozenset[str]:
    """Every text in the package, with a gap where a value goes."""
    return frozenset(text for path in PACKAGE.rglob("*.py") for text in _texts(ast.parse(path.read_text())))


def _texts(tree: ast.Module) -> Iterator[str]:
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in documentation:
            continue
        if text := _text(node):
            yield text


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def can_be_said(message: str) -> bool:
    """As a whole or as the part of a longer one; a gap at either end stands for anything."""
    wanted = message.strip(f"{GAP} ")
    return any(wanted in text for text in said())


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_on_the_page_is_one_of_the_codes(message: str) -> None:
    assert can_be_said(message)


@pytest.mark.parametrize("message", ["the directory is occupied", "the disk is fully", "there is no key …; try …?"])
def test_another_one_would_be_found(message: str) -> None:
    assert not can_be_said(message)


RAISED = ("StorageError", "NonFiniteError", "OutOfMemoryError", "DesyncError", "RankLostError", "LoaderError")
RAISED += ("GateError", "OccupiedError", "CheckpointError")
"""What a run can end with, and who may have a directory: complete. Those of commands, configurations and data are too many, and say it all."""


def raised() -> Iterator[tuple[str, ...]]:
    """The texts of each place that makes one of these errors, as far as they stand there or were assigned before."""
    for path in PACKAGE.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                yield from _raised_in(function)


def _raised_in(function: ast.FunctionDef) -> Iterator[tuple[str, ...]]:
    nodes = list(ast.walk(function))
    assigned = {
        target.id: node.value
        for node in nodes
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RAISED and node.args:
            parts = list(ast.walk(node.args[0]))
            named = [assigned[part.id] for part in parts if isinstance(part, ast.Name) and part.id in assigned]
            yield tuple(
                text for part in [*parts, *(inner for one in named for inner in ast.walk(one))] if (text := _text(part))
            )


def test_every_message_that_ends_a_run_is_on_the_page() -> None:
    told = [message.strip(f"{GAP} ") for message in MESSAGES]
    found = [texts for texts in set(raised()) if texts]
    assert len(found) > 40
    assert [texts for texts in found if not any(message in text for text in texts for message in told)] == []


def test_no_message_is_there_twice_and_there_are_many() -> None:
    assert len(set(MESSAGES)) == len(MESSAGES) > 80


def test_every_error_has_a_section() -> None:
    headings = re.findall(r"^## (\w+Error|Interrupted): ", PAGE, re.MULTILINE)
    assert sorted(headings) == sorted(ERRORS)


def test_the_exit_codes_are_those_of_the_errors() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*?) \|", OURS, re.MULTILINE)
    told = {name: int(code) for code, names in rows for name in re.findall(r"`(\w+)`", names)}
    assert told == {name: getattr(errors, name).exit_code for name in ERRORS}


def test_every_finding_is_on_the_page() -> None:
    table = PAGE.partition(FINDINGS)[2].partition(OTHERS)[0]
    named = [
        name for cell in re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)
    ]
    assert sorted(named) == sorted(KINDS)


def render_known() -> str:
    """What is known of messages of others, as a table."""
    known = yaml.safe_load((PACKAGE / "diagnose" / "signatures.yaml").read_text(encoding="utf-8"))
    rows = [f"| {_cell(one['pattern'], code=True)} | {_cell(one['cause'])} | {_cell(one['cure'])} |" for one in known]
    return "\n".join(["| in a log (regular expression) | cause | cure |", "|---|---|---|", *rows]) + "\n"


def _cell(text: str, code: bool = False) -> str:
    words = " ".join(text.split()).replace("|", "\\|")
    if not code:
        return words
    return f"`` {words} ``" if "`" in words else f"`{words}`"


def test_the_table_of_known_messages_is_that_of_the_file() -> None:
    assert PAGE.partition(OTHERS)[2].partition("\n\n")[2].endswith(render_known())


if __name__ == "__main__":
    print(render_known(), end="")
