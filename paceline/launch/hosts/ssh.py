"""Starts the same command on every host of a hostfile over ssh, shows what each says, and passes Ctrl-C on.

start_by_ssh(read_hostfile(path), ["train", "nsa"], port=29500)   -> the exit code of the first host, which leads

Nothing is left running: where one host does not start, all are ended; where this process or its connection goes, `remote.py` on each host
ends what it started. Experimental: tested with a stand-in for ssh.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.errors import PreflightError, Problem, UsageError
from paceline.launch.hosts.hostfile import HostLine
from paceline.launch.hosts.remote import STARTED
from paceline.launch.signals import OperatorSignals

CONNECT_S = 10
_START_S = 90.0
"""for a Python that comes from a slow disk, beside the time to connect"""
_POLITE_S = 60.0
"""for the others to end by themselves after the first, and for each to end when it is asked"""
_SSH_FAILED = 255


class RemoteHost:
    """The command on one host: an ssh process, a thread that reads it."""

    def __init__(self, host: HostLine, command: Sequence[str], say: Callable[[str], None]) -> None:
        self.host = host
        self.is_started = False
        self.tail: deque[str] = deque(maxlen=5)
        self._say = say
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches us alone
            )
        except OSError as error:
            do = "install an ssh client, or type the command on every host yourself (--nnodes, --rdzv)"
            raise UsageError(f"cannot start {command[0]} ({error.strerror})", "flag --hostfile", do) from error
        self._reader = threading.Thread(target=self._listen, name=f"ssh-{host.name}", daemon=True)
        self._reader.start()

    def poll(self) -> int | None:
        return self._process.poll()

    def pass_on(self, word: str) -> None:
        """INT or TERM, to the command there."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(f"{word}\n".encode())
            self._process.stdin.flush()

    def hang_up(self) -> None:
        """The other side ends what it started when nothing can come any more."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.close()

    def end(self, within_s: float) -> None:
        self.hang_up()
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(2.0)

    def why(self) -> str:
        """What it said last, for one who wants to know why it did not start."""
        said = [line for line in self.tail if line.strip()]
        return said[-1] if said else "it said nothing"

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                text = line.decode("utf-8", "replace").rstrip("\r\n")
                if text == STARTED:
                    self.is_started = True
                    continue
                self.tail.append(text)
                self._say(f"[{self.host.name}] {text}")


def remote_line(host: HostLine, hosts: Sequence[HostLine], words: Sequence[str], port: int, directory: Path) -> str:
    """What the shell of one host is told: the same directory, the same Python, the same words, and where to meet."""
    first = hosts[0].name
    point = f"[{first}]:{port}" if ":" in first else f"{first}:{port}"
    more = ["--nnodes", str(len(hosts)), "--rdzv", point] if len(hosts) > 1 else []
    more += ["--nproc", str(host.slots)] if host.slots is not None else []
    command = [sys.executable, "-m", "paceline.launch.hosts.remote", *words, *more]
    return f"cd {shlex.quote(str(directory))} && exec {shlex.join(command)}"


def ssh_command(host: HostLine, line: str, ssh: str = "ssh", connect_s: int = CONNECT_S) -> list[str]:
    """Never asks for a password or a key's phrase; notices a host that is gone."""
    options = ("BatchMode=yes", f"ConnectTimeout={connect_s}", "ServerAliveInterval=5", "ServerAliveCountMax=3")
    return [ssh, *(word for option in options for word in ("-o", option)), host.target, line]


def start_by_ssh(
    hosts: Sequence[HostLine],
    words: Sequence[str],
    *,
    port: int,
    ssh: str = "ssh",
    connect_s: int = CONNECT_S,
    say: Callable[[str], None] = print,
) -> int:
    """Runs `paceline WORDS` on every host until the first one has ended; the exit code of that one."""
    directory = Path(os.getcwd())
    started: list[RemoteHost] = []
    with OperatorSignals() as signals:
        try:
            for host in hosts:
                line = remote_line(host, hosts, words, port, directory)
                started.append(RemoteHost(host, ssh_command(host, line, ssh, connect_s), say))
            _wait_for_start(started, signals, connect_s)
            return _wait_for_end(started, signals)
        finally:
            _end_all(started)


def _wait_for_start(started: Sequence[RemoteHost], signals: OperatorSignals, connect_s: int) -> None:
    """Until every host runs the command; PreflightError with each that does not."""
    deadline = time.monotonic() + connect_s + _START_S
    while not all(each.is_started for each in started):
        failed = [each for each in started if not each.is_started and each.poll() is not None]
        if failed:
            time.sleep(0.2)  # the last lines are on their way
            # A short command may have started, and ended, since.
            failed = [each for each in failed if not each.is_started]
        if not failed and time.monotonic() > deadline:
            failed = [each for each in started if not each.is_started]
        if failed:
            raise PreflightError(problems=[_not_started(each) for each in failed])
        if signals.asked is not None:
            return
        time.sleep(0.05)


def _not_started(remote: RemoteHost) -> Problem:
    name, code = remote.host.name, remote.poll()
    where = f"hostfile, line {remote.host.line}"
    if code == _SSH_FAILED:
        do = f"it must work without a question: ssh -o BatchMode=yes {remote.host.target} true"
        return Problem(f"{name} cannot be reached over ssh: {remote.why()}", where, do)
    do = f"the same directory and the same Python must be there: {Path.cwd()}, {sys.executable}"
    if code is None:
        return Problem(f"{name} did not start the command in time: {remote.why()}", where, do)
    return Problem(f"{name} did not start the command (exit code {code}): {remote.why()}", where, do)


def _wait_for_end(started: Sequence[RemoteHost], signals: OperatorSignals) -> int:
    leader, has_asked = started[0], False
    while leader.poll() is None:
        if signals.asked is not None and not has_asked:
            has_asked = True
            # The first host decides for all: it lets every rank stop at one step, and sends the others home.
            leader.pass_on("TERM" if signals.asked == "sigterm" else "INT")
        if signals.wants_kill:
            for each in started:
                each.pass_on("INT")
            return 130
        time.sleep(0.1)
    deadline = time.monotonic() + _POLITE_S
    while any(each.poll() is None for each in started) and time.monotonic() < deadline and not signals.wants_kill:
        time.sleep(0.1)
    code = leader.poll()
    assert code is not None
    if code == _SSH_FAILED:
        what = f"the connection to {leader.host.name}, which led, was lost: {leader.why()}"
        raise PreflightError(what, "ssh", "the same command goes on from the newest checkpoint")
    return code


def _end_all(started: Sequence[RemoteHost]) -> None:
    for each in started:
        each.hang_up()
    for each in started:
        each.end(_POLITE_S)
