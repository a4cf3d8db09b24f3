"""The preparation of speech as a process with processes of its own, killed in the midst of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.recipes.csa.audio import checksum_of, read_samples
from paceline.recipes.csa.manifest import load_manifest, read_manifest
from tests.recipes.csa.tones import build_tree

pytestmark = pytest.mark.timeout(180)


def start(source: Path, output: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "paceline", "prepare", "librispeech", "--input", str(source)]
    command += ["--output", str(output), "--trim", "--workers", "2"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def finish(source: Path, output: Path) -> tuple[int, str]:
    process = start(source, output)
    try:
        out, err = process.communicate(timeout=100)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out + err


def end_in_the_midst(source: Path, output: Path, number: signal.Signals, *, is_alone: bool = False) -> tuple[int, str]:
    """Sends the signal to the group, or to the first process alone, as soon as one more utterance is said to be there."""
    path = output / "manifest.tsv"
    before = count_lines(path)
    process = start(source, output)
    try:
        deadline = time.monotonic() + 60
        while count_lines(path) <= before:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.001)
        if is_alone:
            process.send_signal(number)
        else:
            os.killpg(process.pid, number)
        out, err = process.communicate(timeout=60)
        check_nobody_left(process.pid)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out + err


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def members(group: int) -> list[int]:
    """The living processes of a group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, pgrp = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue
            if int(pgrp) == group and state not in "ZX":
                found.append(int(entry.name))
    return found


def check_nobody_left(group: int) -> None:
    deadline = time.monotonic() + 10
    while left := members(group):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def check_outputs(output: Path, count: int) -> None:
    manifest = load_manifest(output / "manifest.tsv", "here")
    assert len(manifest.entries) == count
    for entry in manifest.entries:
        samples = read_samples(entry.path.read_bytes(), manifest.rate)
        assert (len(samples), checksum_of(samples)) == (entry.samples, entry.checksum)
    files = {path for path in output.rglob("*") if path.is_file()}
    others = {path.name for path in files - {entry.path for entry in manifest.entries}}
    assert others <= {"manifest.tsv", "errors.tsv", ".prepare.lock"}


def plant(tree: Path) -> None:
    """A truncated FLAC, an empty file and a missing transcript."""
    paths = sorted(tree.rglob("*.flac"))
    content = paths[3].read_bytes()
    paths[3].write_bytes(content[: len(content) // 2])
    paths[10].write_bytes(b"")
    transcripts = next(paths[17].parent.glob("*.trans.txt"))
    lines = transcripts.read_text().splitlines(keepends=True)
    transcripts.write_text("".join(line for line in lines if not line.startswith(f"{paths[17].stem} ")))


@pytest.fixture(params=["tones", pytest.param("LibriSpeech", marks=pytest.mark.shared_data)])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    tree = tmp_path / "in"
    if request.param == "tones":
        build_tree(tree, chapters=10, utterances=10)
    else:
        shutil.copytree(request.getfixturevalue("real_data") / "LibriSpeech", tree)
        for path in [tree, *tree.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
    plant(tree)
    yield tree
    shutil.rmtree(tree)


def test_killed_twice_it_ends_as_if_nothing_had_happened(tree: Path, tmp_path: Path) -> None:
    code, said = finish(tree, tmp_path / "whole")
    assert code == 2, said
    assert "3 were left out, the other 97 are ready" in said
    reasons = (tmp_path / "whole" / "errors.tsv").read_text().splitlines()[1:]
    assert [reason.split("\t")[1].split(":")[0] for reason in reasons] == [
        "damaged",
        "empty",
        "there is no transcript for it",
    ]
    check_outputs(tmp_path / "whole", 97)

    output = tmp_path / "killed"
    for _ in range(2):
        before = count_lines(output / "manifest.tsv")
        code, _ = end_in_the_midst(tree, output, signal.SIGKILL)
        assert code == -signal.SIGKILL
        found = read_manifest(output / "manifest.tsv")
        assert not found.is_complete
        assert before < count_lines(output / "manifest.tsv")
        assert len(found.entries) < 97
    code, said = finish(tree, output)
    assert code == 2, said
    assert (output / "manifest.tsv").read_bytes() == (tmp_path / "whole" / "manifest.tsv").read_bytes()
    assert (output / "errors.tsv").read_bytes() == (tmp_path / "whole" / "errors.tsv").read_bytes()
    check_outputs(output, 97)


def test_a_kill_of_the_first_process_alone_ends_the_others(tmp_path: Path) -> None:
    tree = build_tree(tmp_path / "in", chapters=10, utterances=10)
    code, _ = end_in_the_midst(tree, tmp_path / "out", signal.SIGKILL, is_alone=True)
    assert code == -signal.SIGKILL
    assert finish(tree, tmp_path / "out")[0] == 0
    check_outputs(tmp_path / "out", 100)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_its_processes_and_says_how_to_go_on(tmp_path: Path, number: signal.Signals) -> None:
    tree = build_tree(tmp_path / "in", chapters=10, utterances=10)
    # Ctrl-C reaches all processes of the terminal, SIGTERM the one that it was sent to.
    code, said = end_in_the_midst(tree, tmp_path / "out", number, is_alone=number == signal.SIGTERM)
    assert code == 130, said
    assert "goes on where it stopped" in said
    assert "Traceback" not in said
    assert not read_manifest(tmp_path / "out" / "manifest.tsv").is_complete
