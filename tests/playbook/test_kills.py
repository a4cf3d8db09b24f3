"""A playbook that is killed goes on where it was, and leaves nothing running; Ctrl-C asks the command to stop, once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from paceline.config.source import read_layer
from paceline.files import read_json, read_records
from paceline.playbook.child import Child
from paceline.telemetry.reader import read_run
from tests.playbook.conftest import PREFIX, SMALL

PLAYER = Path(__file__).parent / "player.py"


@dataclass
class Started:
    """A playbook in a process of its own, without a terminal."""

    process: subprocess.Popen[bytes]
    output: Path
    children: list[psutil.Process] = field(default_factory=list)

    def kill(self) -> None:
        """Kills the playbook alone; whatever it had started has to go by itself."""
        self.children = psutil.Process(self.process.pid).children(recursive=True)
        assert self.children
        self.process.kill()
        self.process.wait()
        _, alive = psutil.wait_procs(self.children, timeout=20)
        assert not alive

    def finish(self) -> tuple[int, str]:
        return self.process.wait(timeout=100), self.output.read_text()


Start = Callable[..., Started]


@pytest.fixture
def start(tmp_path: Path, calls: object) -> Iterator[Start]:
    """Starts the playbook; whatever is left of it in the end is ended."""
    (tmp_path / "book.yaml").write_text(SMALL)
    started: list[Started] = []

    def begin(hold: str = "") -> Started:
        output = tmp_path / f"output{len(started)}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, str(PLAYER), str(tmp_path / "book.yaml"), str(tmp_path / "out")],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=os.environ | {"HOLD": hold},
            )
        started.append(Started(process, output))
        return started[-1]

    yield begin
    for each in started:
        each.process.kill()
        each.process.wait()
        for child in each.children:
            with contextlib.suppress(psutil.Error):
                child.kill()


def wait_until(done: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_killed_in_p1_and_again_in_p2_and_resumed_both_times(start: Start, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ledger, steps = out / "P1" / "sweep" / "ledger.jsonl", out / "P2" / "run" / "steps.jsonl"

    first = start("sweep:2")
    wait_until(lambda: len(read_records(ledger)) == 2)
    first.kill()
    assert [phase["state"] for phase in read_json(out / "playbook.json")["phases"]][:2] == ["done", "running"]

    second = start("train:3")
    wait_until(lambda: len(read_records(steps)) == 3)
    second.kill()
    # The first two trials were kept, and nothing was counted twice.
    trials = read_records(ledger)
    assert len({trial["case"] for trial in trials}) == len(trials) == 4
    assert [phase["state"] for phase in read_json(out / "playbook.json")["phases"]][:3] == ["done", "done", "running"]

    code, said = start().finish()
    assert code == 0, said
    assert said.count("done already") == 2
    record = read_json(out / "playbook.json")
    assert [phase["state"] for phase in record["phases"]] == ["done", "done", "done", "skipped"]
    assert [phase["attempts"] for phase in record["phases"]] == [1, 2, 2, 0]
    # P2 went on from where it was, as one run with two attempts, and being killed is no failure of the training.
    run = read_run(out / "P2" / "run")
    assert [(line["step"], line["attempt"]) for line in read_records(steps)] == [(1, 1), (2, 1), (3, 1), (4, 2)]
    assert [attempt.state for attempt in run.run.attempts] == ["failed", "finished"]
    assert record["phases"][2]["results"]["failures"] == 0
    best = read_layer(out / "P1" / "sweep" / "best.yaml").entries
    trained = read_layer(out / "P2" / "run" / "config.yaml").entries
    assert {key: trained[key].value for key in ("model.blocks", "train.optimizer.lr")} == {
        key: best[key].value for key in ("model.blocks", "train.optimizer.lr")
    }
    calls = [json.loads(line)[0] for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert calls == ["train", "sweep", "sweep", "train", "train"]


def test_ctrl_c_reaches_the_command_once_and_the_same_command_goes_on(start: Start, tmp_path: Path) -> None:
    out = tmp_path / "out"
    held = start("train:2")
    wait_until(lambda: len(read_records(out / "P0" / "run" / "steps.jsonl")) == 2)
    held.process.send_signal(signal.SIGINT)
    code, said = held.finish()
    assert code == 130
    assert "the same command goes on" in said
    record = read_json(out / "playbook.json")
    assert (record["state"], record["phases"][0]["state"], record["phases"][0]["reason"]) == (
        "stopped",
        "stopped",
        "by Ctrl-C",
    )


class Asked:
    """Somebody who asks to stop as soon as a file is there; by default nobody."""

    wants_kill = False

    def __init__(self, file: Path | None = None) -> None:
        self._file = file

    @property
    def asked(self) -> str | None:
        return "ctrl_c" if self._file is not None and self._file.exists() else None


COUNT = """
import pathlib, signal, sys, time
asked = []
signal.signal(signal.SIGINT, lambda *_: asked.append(1))
pathlib.Path(sys.argv[1]).touch()
print("on its way", file=sys.stderr, flush=True)
while len(asked) < int(sys.argv[2]):
    time.sleep(0.01)
time.sleep(0.7)     # several looks: a second signal would be here by then
sys.exit(len(asked))
"""


@pytest.mark.parametrize("count", [0, 1])
def test_a_request_is_passed_on_once(tmp_path: Path, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    signals = Asked(tmp_path / "there" if count else None)
    ended = Child([sys.executable, "-c", COUNT], signals).run([str(tmp_path / "there"), str(count)])  # type: ignore[arg-type]
    assert (ended.exit_code, ended.tail) == (count, ["on its way"])
    assert "on its way" in capsys.readouterr().err


def test_a_request_reaches_a_command_of_a_background_job(tmp_path: Path) -> None:
    """A shell starts those with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(60)"
        ended = Child([sys.executable, "-c", code], Asked(tmp_path / "there")).run([str(tmp_path / "there")])  # type: ignore[arg-type]
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.exit_code == -signal.SIGINT or "KeyboardInterrupt" in "".join(ended.tail)


def test_an_answer_is_kept_whole_or_not_at_all(tmp_path: Path, calls: object) -> None:
    child = Child(PREFIX, Asked())  # type: ignore[arg-type]
    assert child.run(["evaluate", "x"], tmp_path / "a.json").exit_code == 0
    assert read_json(tmp_path / "a.json")["rows"][0]["equal"] is True
    assert child.run(["sweep-nothing"], tmp_path / "b.json").exit_code == 0
    assert not (tmp_path / "b.json").exists()
