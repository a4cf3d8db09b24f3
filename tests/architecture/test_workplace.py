"""Nothing in the repository knows whose machine it was written on, and nothing is left for later inside a comment."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.architecture.rooms import ROOT

PLACES = re.compile(r"(?<![\w.~-])/(root|workspace|home/\w+|Users/\w+|mnt/\w+)/|file:///")
LATER = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")


def repository_files() -> list[Path]:
    """Tracked files, and new ones that are not ignored."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: which files belong to it is not known")
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def find(pattern: re.Pattern[str], path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [f"{path.relative_to(ROOT)}:{number}" for number, line in enumerate(lines, 1) if pattern.search(line)]


@pytest.mark.parametrize("pattern", [PLACES, LATER], ids=["places", "later"])
def test_no_file_has_it(pattern: re.Pattern[str]) -> None:
    here = Path(__file__)
    assert [where for path in repository_files() if path != here for where in find(pattern, path)] == []


@pytest.mark.parametrize("text", ["/root/x", "cd /home/anna/x", "'/Users/anna/x'", "=/workspace/x", "file:///opt"])
def test_a_place_would_be_found(text: str) -> None:
    assert PLACES.search(text)


@pytest.mark.parametrize("text", ["net/root/x", "https://example.org/home/x", "~/workspace/x", "./workspace/x"])
def test_other_paths_are_fine(text: str) -> None:
    assert not PLACES.search(text)


def test_no_large_file_is_kept() -> None:
    assert [str(path) for path in repository_files() if path.stat().st_size > 500_000] == []
