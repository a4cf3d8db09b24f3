"""A command of Paceline as a child process: it ends with us however we end, and Ctrl-C reaches us alone, who pass it on once.

Child(["python", "-m", "paceline"]).run(["train", "sasrec", "--out", "runs/a"])   -> Ended(exit_code=0, tail=[])
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from paceline.files import write_text
from paceline.launch.signals import OperatorSignals
from paceline.parentage import die_with_parent

PREFIX = (sys.executable, "-m", "paceline")
_TAIL = 40
_LOOK_S = 0.2


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    exit_code: int
    tail: list[str]
    """its last lines of standard error"""
    answer: str = ""
    """its standard output, where that was kept"""


class Child:
    """Runs one command after another."""

    def __init__(self, prefix: Sequence[str], signals: OperatorSignals) -> None:
        self._prefix = list(prefix)
        self._signals = signals

    def run(self, arguments: Sequence[str], answer: Path | None = None) -> Ended:
        """The command's end; with `answer` its standard output is kept there, else it goes to ours."""
        sys.stdout.flush()
        process = subprocess.Popen(
            [*self._prefix, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if answer is not None else None,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=functools.partial(_begin, os.getpid()),
        )
        tail: deque[str] = deque(maxlen=_TAIL)
        kept: list[str] = []
        readers = [threading.Thread(target=_pass_on, args=(process.stderr, tail), daemon=True)]
        if answer is not None:
            readers.append(threading.Thread(target=_keep, args=(process.stdout, kept), daemon=True))
        for reader in readers:
            reader.start()
        try:
            self._follow(process)
        except BaseException:
            process.kill()
            process.wait()
            raise
        for reader in readers:
            reader.join(timeout=5.0)
        if answer is not None and "".join(kept).strip():
            write_text(answer, "".join(kept))
        return Ended(process.returncode, list(tail), "".join(kept))

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        """Waits; the first signal asks the command to stop, the second one kills what it started."""
        told = 0
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_S)
                return
            wanted = 2 if self._signals.wants_kill else 1 if self._signals.asked else 0
            if wanted > told:
                told = wanted
                process.send_signal(signal.SIGINT)


def _begin(parent_pid: int) -> None:
    """In the child, before its program."""
    # A shell's background job has SIGINT ignored, and so would this one: but we pass a stop on by it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Killed with us, not asked to stop: whoever starts the playbook again must not meet a command that is still stopping.
    die_with_parent(parent_pid, signal.SIGKILL)


def _pass_on(stream: IO[bytes], tail: deque[str]) -> None:
    with stream:
        for line in stream:
            text = line.decode("utf-8", "replace").rstrip("\n")
            tail.append(text)
            with contextlib.suppress(OSError, ValueError):  # nobody reads our errors: no reason to block the command
                print(text, file=sys.stderr, flush=True)


def _keep(stream: IO[bytes], kept: list[str]) -> None:
    with stream:
        kept.append(stream.read().decode("utf-8", "replace"))
