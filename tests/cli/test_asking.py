from __future__ import annotations

import sys
import traceback

import pytest

from paceline.cli import asking
from paceline.cli.asking import ask_worker, read_failure
from paceline.errors import DataError, PacelineError, UsageError
from paceline.telemetry.failure import format_failure

FAILURE = DataError("no file", "data.path", "give one").to_record() | {"traceback": "line 7 of the worker"}


@pytest.fixture
def as_worker(tmp_path, monkeypatch):
    """as_worker("print(1)") -> the name of a module that does this."""

    def write(code: str) -> str:
        (tmp_path / "some_worker.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return "some_worker"

    return write


def test_the_answer_is_the_last_line(as_worker):
    name = as_worker("import json, os, sys\nprint('hello')\nprint(json.dumps([sys.argv[1:], os.environ['COLOR']]))")
    assert ask_worker([name, "a", "b"], environment={"COLOR": "red"}) == [["a", "b"], "red"]


def test_an_error_arrives_as_it_was_there(as_worker):
    name = as_worker(f"import sys\nprint('noise', file=sys.stderr)\nsys.exit({format_failure(FAILURE)!r})")
    with pytest.raises(DataError, match="no file") as caught:
        ask_worker([name])
    assert caught.value.problems[0].do == "give one"
    assert "line 7 of the worker" in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("code", ["", "print('{')"])
def test_no_answer(as_worker, code):
    name = as_worker(code)
    with pytest.raises(PacelineError, match="gave no answer") as caught:
        ask_worker([name])
    assert "some_worker" in caught.value.problems[0].where


def test_an_answer_that_does_not_come(as_worker):
    name = as_worker("import time\ntime.sleep(60)")
    with pytest.raises(PacelineError, match="did not answer") as caught:
        ask_worker([name], timeout_s=0.5, otherwise="use --no-sizes")
    assert caught.value.problems[0].do == "use --no-sizes, or look at what it does"


def test_a_worker_that_dies_without_a_word_of_ours():
    error = read_failure("Traceback …\nSegmentation fault\n\n", 1, "python -m paceline.worker x")
    assert "Segmentation fault" in error.problems[0].what
    assert error.problems[0].where == "python -m paceline.worker x"


def test_a_worker_that_was_killed_says_by_what(as_worker):
    name = as_worker("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(PacelineError, match=r"signal 9 \(SIGKILL; often the out-of-memory killer\)\n") as caught:
        ask_worker([name], otherwise="use --no-sizes")
    assert caught.value.problems[0].do == "check the kernel's log (dmesg) and free memory, or use --no-sizes"
    crashed = read_failure("UserWarning: harmless\n", -11, "x").problems[0]
    assert crashed.what.endswith(
        "signal 11 (SIGSEGV; a crash in native code); its last line was: UserWarning: harmless"
    )
    assert crashed.do == "run that command to see more"


def test_without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(asking.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs torch"):
        ask_worker(["paceline.worker.model"])
