"""What trains, written down so that a later start can be held against it."""

from __future__ import annotations

import platform
import shutil
from importlib import metadata
from pathlib import Path

import pytest

import paceline
from paceline.telemetry.software import COMPUTING, describe_software, digest_code, find_versions, list_differences


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of two modules, one of them in a folder."""
    (tmp_path / "mine" / "inner").mkdir(parents=True)
    (tmp_path / "mine" / "model.py").write_text("width = 4\n")
    (tmp_path / "mine" / "inner" / "sums.py").write_text("def add(a, b): return a + b\n")
    return tmp_path / "mine"


def test_versions_and_code_by_their_names(package: Path) -> None:
    found = describe_software({"mine": [package]})
    assert found["python"] == platform.python_version()
    assert found["paceline"] == paceline.__version__
    assert found["torch"] == metadata.version("torch")
    assert found["mine"] == digest_code([package])[:12]
    assert find_versions(["torch", "no-such-package"]) == {"torch": found["torch"]}
    assert {"torch", "triton"} <= set(COMPUTING)


def test_code_counts_by_its_content(package: Path, tmp_path: Path) -> None:
    before = digest_code([package])
    moved = shutil.copytree(package, tmp_path / "elsewhere")
    (moved / "__pycache__").mkdir()
    (moved / "__pycache__" / "model.cpython-311.pyc").write_bytes(b"x")
    (moved / "notes.md").write_text("not code")
    assert digest_code([moved]) == before, "neither where it lies, nor when it was written"
    (moved / "inner" / "sums.py").write_text("def add(a, b): return b + a\n")
    assert digest_code([moved]) != before
    (moved / "inner" / "sums.py").write_text((package / "inner" / "sums.py").read_text())
    assert digest_code([moved]) == before
    (moved / "model.py").rename(moved / "models.py")
    assert digest_code([moved]) != before


def test_an_editor_s_lock_is_passed_over(package: Path) -> None:
    before = digest_code([package])
    (package / ".#model.py").symlink_to("somebody@somewhere.4711")
    assert digest_code([package]) == before


def test_a_linked_folder_counts_and_one_that_leads_back_is_walked_once(package: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "linked"
    elsewhere.mkdir()
    (elsewhere / "more.py").write_text("x = 1\n")
    (package / "linked").symlink_to(elsewhere)
    (package / "inner" / "back").symlink_to(package)
    before = digest_code([package])
    (elsewhere / "more.py").write_text("x = 2\n")
    assert digest_code([package]) != before


def test_bytes_that_moved_from_one_file_to_the_next_are_seen(tmp_path: Path) -> None:
    first, second = tmp_path / "a.py", tmp_path / "b.py"
    digests = []
    for texts in (("x = 1\n", ""), ("", "x = 1\n")):
        first.write_text(texts[0])
        second.write_text(texts[1])
        digests.append(digest_code([first, second]))
    assert digests[0] != digests[1]


def test_differences_are_named_from_what_to_what() -> None:
    before = {"python": "3.11.4", "torch": "2.12.1", "triton": "3.7.0", "paceline": "0.1.0", "paceline.engine": "4be1"}
    assert list_differences(before, dict(before)) == []
    now = before | {"torch": "2.13.0", "paceline.engine": "9f3a", "deepspeed": "0.18.1"}
    del now["triton"]
    expected = [
        "torch: 2.12.1 → 2.13.0",
        "triton: 3.7.0 → none",
        "paceline.engine: 4be1 → 9f3a",
        "deepspeed: none → 0.18.1",
    ]
    assert list_differences(before, now) == expected


def test_another_version_of_paceline_is_said_once() -> None:
    before = {"paceline": "0.1.0", "paceline.engine": "4be1", "mine": "77aa"}
    now = {"paceline": "0.2.0", "paceline.engine": "9f3a", "paceline.gears": "0a0a", "mine": "88bb"}
    assert list_differences(before, now) == ["paceline: 0.1.0 → 0.2.0", "mine: 77aa → 88bb"]
