"""The files that are a foreign script's code: those its command line names, and whatever of its own they import.

    script_files(["python", "train.py", "--config=a.yaml"])      -> {train.py, a.yaml, model.py, layers/__init__.py, layers/norm.py}
    script_files(["python", "-m", "pkg.train"])                  -> {pkg/__init__.py, pkg/train.py, …}

Found by reading import statements, without running anything: what a script loads in other ways (exec, importlib, a shell script) and
what is installed elsewhere is not among them.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path


def script_files(argv: Sequence[str]) -> set[Path]:
    """Absolute paths; the words are looked up in the working directory, as Python does."""
    named = {Path(part).absolute() for word in argv for part in _parts(word) if _is_file(part)}
    found = set(named)
    for path in named:
        if path.suffix == ".py":
            found |= _imported(path, path.parent)
    for flag, module in itertools.pairwise(argv):
        if flag == "-m" and all(part.isidentifier() for part in module.split(".")):
            root = Path.cwd()
            for path in _module(root, f"{module}.__main__") | _module(root, module):
                found |= {path} | _imported(path, root)
    return found


def _is_file(part: str) -> bool:
    """A word may be anything: too long for a name, or with characters that no name has."""
    try:
        return Path(part).is_file()
    except (OSError, ValueError):
        return False


def _parts(word: str) -> tuple[str, ...]:
    return tuple(part for part in (word, word.rpartition("=")[2]) if part)


def _imported(script: Path, root: Path) -> set[Path]:
    """Every file below `root` that the script imports, and that those import."""
    found: set[Path] = set()
    waiting = [script]
    while waiting:
        path = waiting.pop()
        new = {file for name in _imports(path, root) for file in _module(root, name)} - found - {script}
        found |= new
        waiting += sorted(new)
    return found


def _imports(path: Path, root: Path) -> Iterator[str]:
    """Dotted names of all that a file imports, those of its own package included."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    package = path.parent.relative_to(root).parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join((*above, *([node.module] if node.module else [])))
            # What follows may be a module or a name in one; a file that is not there is no harm.
            yield from (f"{module}.{alias.name}".strip(".") for alias in node.names)


def _module(root: Path, name: str) -> set[Path]:
    """The files of a module and of the packages above it, as far as they are there."""
    parts = name.split(".")
    found = set()
    for depth in range(1, len(parts) + 1):
        place = root.joinpath(*parts[:depth])
        found |= {file for file in (place.with_name(f"{place.name}.py"), place / "__init__.py") if file.is_file()}
    return found
