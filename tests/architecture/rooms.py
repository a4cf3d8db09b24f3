"""The rooms of the package and their ranks, and every import between modules, as the source says."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "paceline"

RANKS = {
    "errors": 0,
    "cores": 0,
    "files": 0,
    "parentage": 0,
    "telemetry": 1,
    "config": 2,
    "workload": 3,
    "diagnose": 4,
    "engine": 4,
    "launch": 4,
    "reports": 4,
    "recipes": 5,
    "supervise": 5,
    "trained": 6,
    "serving": 7,
    "worker": 8,
    "preflight": 9,
    "sweep": 10,
    "playbook": 11,
    "triage": 11,
    "bench": 12,
    "cli": 13,
    "__main__": 14,
}
"""A room may import lower ranks and itself, never a higher rank or another room of its own. CONTRIBUTING.md has the same table.
The loose files of rank 0 are one room."""


@dataclass(frozen=True)
class Import:
    """One import of one of our modules by another."""

    importer: str
    imported: str
    where: str
    is_late: bool = False
    """inside a function: it happens when that is called, not when the file is imported"""


def module_name(path: Path, package: Path = PACKAGE) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def module_names(package: Path = PACKAGE) -> list[str]:
    return sorted(module_name(path, package) for path in package.rglob("*.py"))


def room_of(module: str) -> str:
    """The room of a module; the package itself, which holds only its version, is in none."""
    return module.split(".")[1] if "." in module else ""


def is_same_room(first: str, second: str) -> bool:
    return first == second or RANKS[first] == RANKS[second] == 0


@functools.cache  # several tests look at the whole package, which takes seconds to read
def find_imports(package: Path = PACKAGE) -> tuple[Import, ...]:
    """Every import of the package's own modules: in functions, and under TYPE_CHECKING, too.

    The latter count because a type that must be known is a dependency like any other: the two files can no longer be read apart.
    """
    known, found = set(module_names(package)), []
    for path in sorted(package.rglob("*.py")):
        importer = module_name(path, package)
        for node, is_late in _walk(ast.parse(path.read_text(encoding="utf-8"))):
            where = f"{path.relative_to(package.parent)}:{node.lineno}"
            for imported in _targets(node, path, package, known):
                found.append(Import(importer, imported, where, is_late))
    return tuple(found)


def _walk(tree: ast.Module) -> Iterator[tuple[ast.stmt, bool]]:
    """Every statement, and whether it is inside a function. An import is one, so nobody has to look into expressions."""
    left: list[tuple[ast.AST, bool]] = [(tree, False)]
    while left:
        node, is_late = left.pop()
        is_late = is_late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                yield child, is_late
            if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
                left.append((child, is_late))


def _targets(node: ast.AST, path: Path, package: Path, known: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.split(".")[0] == package.name)
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            around = module_name(path.parent / "__init__.py", package).split(".")
            base = ".".join([*around[: len(around) - node.level + 1], *([node.module] if node.module else [])])
        if base.split(".")[0] == package.name:
            for alias in node.names:
                yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base
