"""`paceline train` with a foreign script: a run like any other, ended when asked, with what it said when it failed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from paceline.cli.main import run_command
from paceline.telemetry.reader import read_run

pytestmark = pytest.mark.timeout(60)
ROOT = Path(__file__).parents[3]
SCRIPT = """
import os, sys, time
print("rank", os.environ.get("RANK"), "port", sys.argv[2])
for step in range(1, int(sys.argv[1]) + 1):
    print(f"iter {step} loss {1 / step}")
    time.sleep(0.002)
print("score 0.5")
sys.exit(int(sys.argv[3]))
"""


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (tmp_path / "x.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    argv = f"[{sys.executable}, x.py, '{{params.steps}}', '{{port}}', '{{params.code}}']"
    metrics = r"{step: 'iter (\d+)', loss: 'loss (\S+)', score: 'score ([\d.]+)'}"
    return ["command", f"command.argv={argv}", f"command.metrics={metrics}", "--out", "r"]


def test_it_trains_and_what_has_no_effect_is_said(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    more = ["command.params={steps: 40, code: 0}", "train.global_batch=9", "train.max_steps=40"]
    assert run_command(["train", *words, *more]) == 0
    assert "command: finished" in capsys.readouterr().out
    run = read_run(Path("r"))
    assert (run.run.state, run.run.reason, run.metrics[-1]["step"]) == ("finished", "finished", 40)
    assert run.validation[-1]["score"] == 0.5  # said after the last step, for which it had the time
    (note,) = run.events_of("note")
    assert note["what"] == "train.global_batch has no effect"
    assert "rank None port" in (run.layout.log(0)).read_text()
    assert run_command(["report", "r"]) == 0
    assert run_command(["train", *words, *more]) == 0
    assert "already finished" in capsys.readouterr().out
    assert run_command(["evaluate", "r"]) == 2
    assert run_command(["explain", *words[:3], *more, "--no-sizes"]) == 0


def test_its_failure_is_told_with_its_last_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["train", *words, "command.params={steps: 3, code: 7}"]) == 4
    assert "the script ended with exit code 7; its last line was: score 0.5" in capsys.readouterr().err
    assert read_run(Path("r")).run.state == "failed"


def test_ctrl_c_ends_it_and_everything_below(words: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "paceline", "train", *words, "command.params={steps: 100000, code: 0}"]
    child = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path, env=os.environ
    )
    log = tmp_path / "r" / "logs" / "rank_00000.log"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not (log.exists() and log.stat().st_size):
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    assert child.wait(30) == 130
    run = read_run(tmp_path / "r")
    assert (run.run.state, run.run.reason) == ("stopped", "ctrl_c")


@pytest.mark.parametrize("value", ["inf", "nan"])
def test_a_script_that_ends_without_a_finite_loss_has_failed(
    words: list[str], value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("x.py").write_text(f"print('iter 1 loss 2.0'); print('iter 2 loss {value}'); print('iter 3')")
    assert run_command(["train", *words, "command.params={steps: 3, code: 0}"]) == 4
    assert "a loss that is not a number" in capsys.readouterr().err


def test_a_line_that_never_ends_does_not_stall_the_reading(words: list[str]) -> None:
    text = "import sys\nprint('iter 1 loss 2.0')\nfor _ in range(400): sys.stdout.write('x' * 65536)\nprint(' iter 2 loss 1.0')\n"
    Path("x.py").write_text(text + "sys.exit('z' * 100_000)")
    assert run_command(["train", *words, "command.params={steps: 3, code: 0}"]) == 4
    run = read_run(Path("r"))
    assert [row["step"] for row in run.metrics] == [1, 2]
    assert len([note for note in run.events_of("note") if "a line of the script has more than" in note["what"]]) == 1
    assert len(run.run.reason) < 1000


DEAF = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sys.argv[1] != "0":
    subprocess.Popen([sys.executable, __file__, "0"], start_new_session=True, stdout=subprocess.DEVNULL)
while True:
    print("iter 1", flush=True)
    time.sleep(0.02)
"""


def test_a_script_that_ignores_sigterm_ends_with_its_launcher_and_so_does_what_left_its_session(
    words: list[str], tmp_path: Path
) -> None:
    script = tmp_path / "x.py"
    script.write_text(DEAF)
    words[1] = f"command.argv=[{sys.executable}, {script}, '{{params.steps}}', '{{params.code}}']"
    command = [sys.executable, "-m", "paceline", "train", *words]
    command += ["command.params={steps: 1, code: 0}", "command.stop_grace_s=0.3"]

    def living() -> int:
        found = 0
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                found += str(script) in process.cmdline()
        return found

    def wait_for(number: int) -> bool:
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline and living() != number:
            time.sleep(0.05)
        return living() == number

    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path) as child:
        try:
            assert wait_for(2)
            child.kill()
            assert wait_for(0)
        finally:
            child.kill()
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.Error):
                    if str(script) in process.cmdline():
                        process.kill()
