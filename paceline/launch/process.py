"""The agent process (torchrun) and everything below it: started, listened to, and ended so that nothing is left running.

The agent gets its own session (Ctrl-C reaches the launcher alone, which decides) and dies with the launcher. What it and its workers
print goes to logs/launcher.log and a bounded tail in memory; `paceline-failure {…}` lines of failing workers are collected, so that
an error arrives even when the disk is full.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from paceline.launch.command import LAUNCH_MARK
from paceline.launch.marked import end_found, is_alive
from paceline.launch.warm import WarmAgent, start_process
from paceline.telemetry.failure import parse_failure

KILLED = -int(signal.SIGKILL)
"""the exit code of an agent that was still alive when everything was ended: whoever waits for its pid first takes its real one away"""
_TAIL_LINES = 400
_EXIT = re.compile(r"rank +: (\d+) .*\n +exitcode +: (-?\d+) \(pid: (\d+)\)")


@dataclass(frozen=True)
class RankExit:
    """A rank that torchrun saw fail: its exit code, negative for a signal."""

    rank: int
    exit_code: int
    pid: int


class Agent:
    """One started agent."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        rendezvous_id: str,
        warm: WarmAgent | None = None,
    ) -> None:
        self.failures: list[dict[str, Any]] = []
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._rendezvous_id = rendezvous_id
        taken = warm.take(command, environment) if warm is not None else None
        self._process = taken or start_process(command, env=dict(environment), stdin=subprocess.DEVNULL)
        self._reader = threading.Thread(target=self._listen, args=(log,), name="agent-output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """The agent's exit code, or None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float | None = None) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def terminate(self) -> None:
        """Asks the agent to end; it passes SIGTERM on to every rank."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def exits(self) -> list[RankExit]:
        """The ranks that failed, as torchrun saw them, the first observed one first."""
        return parse_exits(list(self.tail))

    def kill_all(self) -> list[int]:
        """Ends the agent and everything it started, by pid, and waits; returns the pids that did not go."""
        left = end_found(self._members)
        self.wait(1.0)
        self._reader.join(timeout=2.0)
        return left

    def _members(self) -> list[psutil.Process]:
        """The agent, its descendants, and whatever carries its rendezvous id, wherever it was reparented to."""
        found: dict[int, psutil.Process] = {}
        with contextlib.suppress(psutil.Error):
            if self._process.poll() is None:
                agent = psutil.Process(self._process.pid)
                for process in [agent, *agent.children(recursive=True)]:
                    found[process.pid] = process
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                environment = process.environ()
                if self._rendezvous_id in (environment.get("TORCHELASTIC_RUN_ID"), environment.get(LAUNCH_MARK)):
                    found[process.pid] = process
        return [process for process in found.values() if is_alive(process)]

    def _listen(self, log: Path) -> None:
        assert self._process.stdout is not None
        with contextlib.ExitStack() as files:
            output = files.enter_context(self._process.stdout)
            file = None
            with contextlib.suppress(OSError):
                file = files.enter_context(open(log, "ab", buffering=0))
            for line in output:
                text = line.decode("utf-8", "replace").rstrip("\n")
                failure = parse_failure(text)
                if failure is not None:
                    self.failures.append(failure)
                    continue
                self.tail.append(text)
                if file is not None:
                    # A full disk must not stop us from reading: a pipe that nobody empties blocks the workers.
                    with contextlib.suppress(OSError):
                        file.write(line)


def parse_exits(lines: Sequence[str]) -> list[RankExit]:
    """The failures in torchrun's own report, which ends its output: the root cause first, then the others."""
    others = [index for index, line in enumerate(lines) if line == "Failures:"]
    roots = [index for index, line in enumerate(lines) if line.startswith("Root Cause (first observed failure)")]
    if not others or not roots:
        return []
    texts = ["\n".join(lines[roots[-1] :]), "\n".join(lines[others[-1] : roots[-1]])]
    return [RankExit(int(rank), int(code), int(pid)) for text in texts for rank, code, pid in _EXIT.findall(text)]
