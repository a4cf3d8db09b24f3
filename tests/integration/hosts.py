"""Hosts that are namespaces of this machine: own addresses on a common switch, own name, own processes, own shared memory; one file system.

    with Switch(2) as hosts:
        hosts[0].start("train", "sasrec", …); hosts[1].start(…)
        hosts[1].kill()            # every process at once, as when its power is cut
        hosts[1].unplug(); hosts[1].plug()

The switch is a bridge in a namespace of its own, so that nothing of the machine's own network changes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import psutil

ROOT = Path(__file__).parents[2]
SUBNET = "10.253.77"
PORT = 29500
_BOOT = 'hostname "$1"; mount -t tmpfs tmpfs /dev/shm; shift; "$@"; exit $?'


@functools.cache
def cannot_build() -> str:
    """Why there can be no such hosts here; empty: there can."""
    missing = [name for name in ("ip", "unshare") if shutil.which(name) is None]
    if missing:
        return f"there is no {missing[0]} here"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"paceline-try-{os.getpid()}"
    tries = (
        ["ip", "netns", "add", name],
        ["ip", "netns", "exec", name, "unshare", "--pid", "--fork", "--mount", "--uts", "true"],
    )
    done = [subprocess.run(command, capture_output=True, text=True, check=False, timeout=20) for command in tries]
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False, timeout=20)
    return next((each.stderr.strip() or "namespaces are not allowed" for each in done if each.returncode), "")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


class Host:
    """One of them; what runs on it ends with it."""

    def __init__(self, name: str, namespace: str, switch: str, number: int, folder: Path) -> None:
        self.name = name
        self.address = f"{SUBNET}.{number + 1}"
        self._namespace = namespace
        self._switch = switch
        self._port = f"port{number}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        _ip("netns", "add", namespace)
        _ip("-n", switch, "link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _ip("-n", switch, "link", "set", self._port, "master", "bridge", "up")
        for words in (["addr", "add", f"{self.address}/24", "dev", "eth0"], ["link", "set", "eth0", "up"]):
            _ip("-n", namespace, *words)
        _ip("-n", namespace, "link", "set", "lo", "up")

    def start(self, *words: str, environment: dict[str, str] | None = None) -> None:
        """Boots it with `paceline WORDS` as its only program."""
        self.boot([sys.executable, "-m", "paceline", *words], environment)

    def boot(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        assert self._process is None or self._process.poll() is not None, "it is up already"
        self.starts += 1
        inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts", "--mount"]
        inside += ["sh", "-c", _BOOT, "sh", self.name, *command]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        given = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path, "COLUMNS": "200"} | (environment or {})
        with open(self.console, "wb") as console:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", self._namespace, *inside],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                env=given,
                start_new_session=True,
            )

    @property
    def console(self) -> Path:
        return self._folder / f"{self.name}_{self.starts}.txt"

    def text(self) -> str:
        """What its program has printed since it was started."""
        return self.console.read_text(errors="replace") if self.starts else ""

    def wait(self, timeout_s: float) -> int:
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} has not ended within {timeout_s} s:\n{self.text()}") from None

    def wait_for(self, words: str, timeout_s: float) -> float:
        """Until its program has printed this; how long it took."""
        began = time.monotonic()
        while words not in self.text():
            assert time.monotonic() - began < timeout_s, (
                f"{self.name} did not say {words!r} in {timeout_s} s:\n{self.text()}"
            )
            assert self._process is not None
            assert self._process.poll() is None or words in self.text(), f"{self.name} has ended:\n{self.text()}"
            time.sleep(0.05)
        return time.monotonic() - began

    def processes(self) -> list[psutil.Process]:
        """Everything that runs on it, its first process first."""
        assert self._process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            unshare = psutil.Process(self._process.pid)
            return unshare.children(recursive=True)
        return []

    def interrupt(self) -> None:
        """Ctrl-C in the terminal of its program."""
        program = next(each for each in self.processes() if each.cmdline()[1:3] == ["-m", "paceline"])
        program.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Every process of it at once."""
        first = self.processes()
        if first:
            with contextlib.suppress(psutil.NoSuchProcess):
                first[0].kill()
        self.wait(10)

    def unplug(self) -> None:
        _ip("-n", self._switch, "link", "set", self._port, "down")

    def plug(self) -> None:
        _ip("-n", self._switch, "link", "set", self._port, "up")

    def remove(self) -> None:
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(AssertionError):
                self.kill()
        subprocess.run(["ip", "netns", "delete", self._namespace], capture_output=True, check=False, timeout=20)


class Switch:
    """So many hosts that reach each other; on leaving, nothing of them is left."""

    def __init__(self, count: int, folder: Path) -> None:
        self._count = count
        self._folder = folder
        self._name = f"paceline-{os.getpid()}-switch"
        self._hosts: list[Host] = []

    def __enter__(self) -> list[Host]:
        _ip("netns", "add", self._name)
        try:
            _ip("-n", self._name, "link", "add", "bridge", "type", "bridge")
            _ip("-n", self._name, "link", "set", "bridge", "up")
            for number in range(self._count):
                name = "abcdef"[number]
                namespace = f"paceline-{os.getpid()}-{name}"
                self._hosts.append(Host(f"host-{name}", namespace, self._name, number, self._folder))
        except BaseException:
            self._remove()
            raise
        return self._hosts

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        for host in self._hosts:
            host.remove()
        subprocess.run(["ip", "netns", "delete", self._name], capture_output=True, check=False, timeout=20)
