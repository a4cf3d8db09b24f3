"""Who the ranks of a foreign script are: before there are any, when they come, and when a launcher brings them back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from paceline.supervise import script_eye
from paceline.supervise.script_eye import ScriptEye

RUNNER = """
import os, subprocess
os.mkfifo(root / "orders")
script = subprocess.Popen(["bash", "-c", 'while read -r line; do eval "$line"; done <> "$0"', str(root / "orders")])
(root / "script").write_text(str(script.pid))
pulse.beat(1, "step")
script.wait()
"""


class Script:
    """A launcher that does as it is told, and an eye that looks at it."""

    def __init__(self, run) -> None:
        self.root = run.layout.root
        run.start(0, RUNNER)
        self.eye = ScriptEye(run.layout, run.attempt)
        self.pid = int((self.root / "script").read_text())

    def start(self, rank: int) -> int:
        told = self.root / f"told{time.monotonic_ns()}"
        (self.root / "orders").write_text(f'RANK={rank} sleep 300 & echo $! > "{told}"\n')
        wait_until(lambda: told.exists() and told.read_text().endswith("\n"))
        return int(told.read_text())

    def see(self) -> dict[int, tuple[int, str]]:
        """Each rank's pid, and whether it lives."""
        processes = {seen.rank: seen.process for seen in self.eye.look().ranks if seen.process is not None}
        return {
            rank: (seen.pid, "gone" if seen.state in ("gone", "zombie") else "lives")
            for rank, seen in processes.items()
        }

    def expect(self, ranks: dict[int, tuple[int, str]]) -> None:
        wait_until(lambda: self.see() == ranks)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def script(fake_run, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    monkeypatch.setattr(script_eye, "_SEARCH_EVERY_S", 0.0)
    monkeypatch.setattr(script_eye, "_SETTLED_EVERY_S", 0.0)
    made = Script(fake_run(1))
    yield made
    assert made.eye.kill() == []
    made.eye.close()


@pytest.mark.timeout(60)
def test_ranks_that_come_late_are_found_and_the_script_no_longer_stands_for_them(script: Script) -> None:
    script.expect({0: (script.pid, "lives")})
    one = script.start(1)
    script.expect({1: (one, "lives")})
    zero = script.start(0)
    script.expect({0: (zero, "lives"), 1: (one, "lives")})


@pytest.mark.timeout(60)
def test_a_dead_rank_is_known_while_anybody_lives_who_lived_with_it_and_no_longer(script: Script) -> None:
    zero, one = script.start(0), script.start(1)
    script.expect({0: (zero, "lives"), 1: (one, "lives")})
    os.kill(one, signal.SIGKILL)
    script.expect({0: (zero, "lives"), 1: (one, "gone")})
    os.kill(zero, signal.SIGKILL)
    script.expect({})
    assert script.see() == {}, "its launcher is no rank, also between two generations"
    again = script.start(0)
    script.expect({0: (again, "lives")})


@pytest.mark.timeout(60)
def test_who_began_after_a_death_is_another_generation(script: Script) -> None:
    zero, one = script.start(0), script.start(1)
    script.expect({0: (zero, "lives"), 1: (one, "lives")})
    os.kill(one, signal.SIGKILL)
    script.expect({0: (zero, "lives"), 1: (one, "gone")})
    time.sleep(0.05)  # the kernel counts starts in hundredths of a second
    os.kill(zero, signal.SIGKILL)
    again = script.start(0)  # nobody has looked meanwhile
    script.expect({0: (again, "lives")})


@pytest.mark.timeout(60)
def test_while_nobody_is_missing_it_searches_now_and_then_and_more_often_when_one_has_died(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    zero, one = script.start(0), script.start(1)
    script.expect({0: (zero, "lives"), 1: (one, "lives")})
    script.see()
    monkeypatch.setattr(script_eye, "_SETTLED_EVERY_S", 1e9)
    two = script.start(2)
    assert script.see().keys() == {0, 1}
    os.kill(one, signal.SIGKILL)
    script.expect({0: (zero, "lives"), 1: (one, "gone"), 2: (two, "lives")})
