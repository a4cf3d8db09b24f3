from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from paceline.cli import prepare_librispeech
from paceline.cli.main import run_command
from tests.recipes.csa.tones import build_tree, write_tone

WORDS = ["prepare", "librispeech", "--input", "in", "--output", "my speech", "--workers", "1"]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return build_tree(tmp_path / "in")


def test_it_says_what_was_cut_and_what_to_type_next(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([*WORDS, "--trim"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("dev: 8 utterances by 2 speakers, 4.")
    assert shown[1].startswith("cut: 2.")
    assert "of silence at the ends of 8 utterances, at the most 0." in shown[1]
    assert shown[2:] == [
        "short: 2 utterances of less than 0.5 s, kept, such as 1-10-0000",
        "wrote and verified 8 files: my speech/manifest.tsv",
        "next: paceline train csa data.source=manifest data.manifest='my speech/manifest.tsv'",
    ]
    assert run_command([*WORDS, "--trim"]) == 0
    assert "nothing to do, verified 8 that were there" in capsys.readouterr().out


def test_what_was_left_out_is_named_and_the_exit_code_says_so(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(7):
        write_tone(tree / f"dev/1/10/extra-{number}.wav")
    assert run_command([*WORDS, "--top-db", "30"]) == 2
    shown = capsys.readouterr()
    assert "--top-db 30 has no effect" in shown.out
    assert "wrote and verified 8 files" in shown.out
    assert "7 were left out, the other 8 are ready" in shown.err
    assert "dev/1/10/extra-4.wav: there is no transcript for it" in shown.err
    assert "and 2 more" in shown.err
    assert "my speech/errors.tsv" in shown.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--input", "nowhere"], "no such directory"),
        (["--workers", "0"], "--workers 0"),
        (["--rate", "1"], "--rate 1 "),
        (["--rate", "fast"], "--rate"),
        (["--input", "in/dev"], "do:    --input "),
        (["--output", "in/out"], "lie within each other"),
        (["--triM"], "--trim"),
    ],
)
def test_what_cannot_be_is_refused_with_exit_code_2(
    tree: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert run_command([*WORDS, *words]) == 2
    assert says in capsys.readouterr().err


def test_ctrl_c_says_how_to_go_on(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare_librispeech, "prepare", interrupt)
    assert run_command(WORDS) == 130
    assert "goes on where it stopped" in capsys.readouterr().err


@pytest.mark.timeout(60)
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_while_the_processes_start(tree: Path, times: int) -> None:
    """On a terminal, whose Ctrl-C reaches every process of the group: one message, nobody left."""
    build_tree(tree, chapters=3, utterances=12)
    terminal, end = pty.openpty()
    words = [*WORDS[:-1], "4"]
    command = [sys.executable, "-m", "paceline", *words]
    process = subprocess.Popen(command, stdin=end, stdout=end, stderr=end, start_new_session=True)
    os.close(end)
    parent, children = psutil.Process(process.pid), []
    while len(children) < 3 and process.poll() is None:  # one keeps account of semaphores
        children = parent.children(recursive=True)
    for _ in range(times):
        os.killpg(process.pid, signal.SIGINT)
    shown = b""
    try:
        while chunk := os.read(terminal, 65536):
            shown += chunk
    except OSError:  # nobody has it open any more
        pass
    os.close(terminal)
    assert process.wait(timeout=10) == 130, shown.decode()
    _, _, said = shown.decode().rpartition("Interrupted: ")
    assert " ".join(said.split()) == "interrupted do: type the same again: it goes on where it stopped"
    assert psutil.wait_procs(children, timeout=5)[1] == []
