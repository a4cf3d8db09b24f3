from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paceline.preflight import snapshot
from paceline.preflight.snapshot import write_snapshot


def test_each_tool_has_its_file_or_the_reason(tmp_path: Path) -> None:
    tools = {
        "said.txt": [sys.executable, "-c", "print('H200')"],
        "missing.xml": ["no-such-tool", "-q"],
        "broken.txt": [sys.executable, "-c", "import sys; sys.exit('driver gone')"],
    }
    assert write_snapshot(tmp_path / "deep" / "here", tools) == list(tools)
    found = {path.name: path.read_text() for path in (tmp_path / "deep" / "here").iterdir()}
    assert found["said.txt"] == "H200\n"
    assert found["missing.xml"] == "not available: no-such-tool is not installed here\n"
    assert found["broken.txt"].startswith("not available: ")
    assert "driver gone" in found["broken.txt"]


def test_the_working_tree_is_named_and_what_changed_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], [*identity, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", *words], check=True, timeout=30)
    (tmp_path / "new.py").touch()
    write_snapshot(tmp_path / "out")
    sha, changed = (tmp_path / "out" / "git_sha.txt").read_text().splitlines()
    assert len(sha) == 40
    assert changed.endswith("files changed since")
    assert "PyTorch version" in (tmp_path / "out" / "collect_env.txt").read_text()
    assert (tmp_path / "out" / "nvidia_smi.xml").read_text()


def test_a_working_tree_without_a_commit_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True, timeout=30)
    monkeypatch.setattr(snapshot, "_COLLECT", [sys.executable, "-c", ""])
    write_snapshot(tmp_path / "out")
    said = (tmp_path / "out" / "git_sha.txt").read_text()
    assert said.startswith("not available: git rev-parse --verify HEAD ended with 128: fatal: ")
