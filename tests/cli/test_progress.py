from __future__ import annotations

import io
import sys

import pytest

from paceline.cli import progress
from paceline.cli.progress import Lines, Pace, showing_progress
from paceline.recipes.progress import Progress


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_a_log_file_gets_a_line_now_and_then(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    report = Lines()
    report(Progress("tokenizing", 1, 4, 1000, "tokens"))
    clock.now += 11
    report(Progress("tokenizing", 2, 4, 2000, "tokens"))
    report(Progress("tokenizing", 3, 4, 3000, "tokens"))
    clock.now += 11
    report(Progress("listing", 0, 0, 4000))
    assert capsys.readouterr().err == "tokenizing: 50%, 2,000 tokens\nlisting: 4,000 files\n"


def test_the_rate_is_that_of_the_phase_and_of_this_call(clock: Clock) -> None:
    pace = Pace()
    assert pace.begin(Progress("verifying", 0, 900))
    clock.now += 50
    assert not pace.begin(Progress("verifying", 900, 900, 900))
    assert pace.begin(Progress("preparing", 0, 1000, 200))
    clock.now += 10
    assert pace.words(Progress("preparing", 0, 1000, 1200)) == "preparing 1,200 files, 100/s"


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with showing_progress() as report:
        report(Progress("verifying", 1, 2, 1))
        report(Progress("preparing", 5, 10, 5))
    shown = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "preparing 5 files" in shown
    assert "50%" in shown
