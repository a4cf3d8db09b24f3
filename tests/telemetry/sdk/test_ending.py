"""However a process ends, run.json says how: real processes, without torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.telemetry.ownership import LOOP_KILLED
from paceline.telemetry.reader import Run, read_run

pytestmark = pytest.mark.timeout(60)
ROOT = Path(__file__).parents[3]
HEAD = """
import os, signal, sys
from paceline import start_run
run = start_run(sys.argv[1], {"a": 1})
run.step(loss=1.0)
"""


def run_python(code: str, out: Path) -> tuple[int, str, Run]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", HEAD + code, str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, env=environment, check=False)
    return done.returncode, done.stderr, read_run(out)


BLOCK = "with run:\n    "
WORDLESS = "class Odd(Exception):\n    def __str__(self): 1 / 0\n"
CTRL_C = "os.kill(os.getpid(), signal.SIGINT); run.step(); run.step()"
FINISHED = ("finished", "length", 0)


@pytest.mark.parametrize(
    ("code", "exit_code", "expected"),
    [
        ("run.finish()", 0, FINISHED),
        ("run.finish(); raise ValueError('later')", 1, FINISHED),
        ("", 0, FINISHED),
        ("sys.exit(main) if (main := 0) else sys.exit()", 0, FINISHED),
        ("1 / 0", 1, ("failed", "ZeroDivisionError: division by zero", 1)),
        (CTRL_C, -signal.SIGINT, ("stopped", "ctrl_c", 130)),
        ("sys.exit(3)", 3, ("failed", "SystemExit: 3", 3)),
        ("sys.exit('no data')", 1, ("failed", "SystemExit: no data", 1)),
        ("try: sys.exit(3)\nexcept SystemExit: run.step()", 0, FINISHED),
        ("run.finish(3)", 0, ("finished", "3", 0)),
        ("run.finish(error='no data\\nat all')", 0, ("failed", "no data", 1)),
        ("run.finish(error=7)", 0, ("failed", "7", 1)),
        ("run.finish(error='')", 0, ("failed", "an error without a word", 1)),
        (WORDLESS + "run.finish(Odd())", 0, ("finished", "Odd without words", 0)),
        (WORDLESS + "raise Odd", 1, ("failed", "Odd: Odd without words", 1)),
        ("from paceline.errors import UsageError\nraise UsageError('a', 'b', 'c')", 1, ("failed", "UsageError: a", 1)),
        (BLOCK + "run.step()", 0, FINISHED),
        (BLOCK + "raise RuntimeError()", 1, ("failed", "RuntimeError", 1)),
        (BLOCK + "raise SystemExit(4)", 4, ("failed", "SystemExit: 4", 4)),
        (BLOCK + "raise SystemExit", 0, FINISHED),
        (BLOCK + CTRL_C, -signal.SIGINT, ("stopped", "ctrl_c", 130)),
        ("pid = os.fork()\nif not pid: sys.exit(7)\nos.waitpid(pid, 0)\nrun.step()\nrun.step(loss=9.0)", 0, FINISHED),
    ],
)
def test_run_json_says_how_it_ended(tmp_path: Path, code: str, exit_code: int, expected: tuple) -> None:
    returned, errors, found = run_python(code, tmp_path)
    assert returned == exit_code, errors
    attempt = found.run.attempts[0]
    assert (found.run.state, found.run.reason, attempt.exit_code) == expected, errors
    assert (attempt.state, attempt.ended is not None) == (found.run.state, True)
    assert found.metrics[-1]["step"] == attempt.step >= 1
    assert not Path(attempt.pulses).exists()
    failures = found.events_of("failure")
    if expected[0] == "failed":
        assert (failures[0]["problems"][0]["what"].splitlines()[0], failures[0]["rank"]) == (expected[1], 0)
        assert found.events_of("end") == []
    else:
        assert failures == []
        assert found.events_of("end")[0]["reason"] == expected[1]
    if exit_code == 1 and "SystemExit" not in expected[1]:
        assert "Traceback" in errors, "Python's own words are not lost"


def test_hooks_of_others_are_called_and_ours_leave_no_trace(tmp_path: Path) -> None:
    code = """
before = sys.excepthook, sys.exit
run.finish()
assert sys.excepthook is sys.__excepthook__ and sys.exit.__name__ == "exit"
sys.excepthook = lambda *error: print("theirs", file=sys.stderr)
run = start_run(sys.argv[1], {"a": 1})
raise ValueError("x")
"""
    returned, errors, found = run_python(code, tmp_path)
    assert (returned, errors) == (1, "theirs\n")
    assert [attempt.reason for attempt in found.run.attempts] == ["length", "ValueError: x"]


def test_what_nobody_could_say_is_said_by_the_next_attempt(tmp_path: Path) -> None:
    # A process that it forked lives on, and must not keep the run occupied.
    code = """
pid = os.fork()
if pid:
    print(pid, file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
os.close(1); os.close(2)
signal.pause()
"""
    returned, pid, found = run_python(code, tmp_path)
    assert (returned, found.run.state) == (-signal.SIGKILL, "running")
    pulses = Path(found.run.attempts[0].pulses)
    assert pulses.exists()
    _, _, found = run_python("run.finish()", tmp_path)
    os.kill(int(pid.split()[-1]), signal.SIGKILL)  # Python may warn of the fork before
    assert [(a.state, a.reason) for a in found.run.attempts] == [("failed", LOOP_KILLED), ("finished", "length")]
    assert not pulses.exists()
    assert found.events_of("note")[0]["what"] == f"attempt 1 of this run ended (failed: {LOOP_KILLED})"
