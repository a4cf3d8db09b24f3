"""The same command on several hosts, through a stand-in for ssh that runs it here."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from paceline.errors import PreflightError, UsageError
from paceline.launch.hosts.hostfile import HostLine
from paceline.launch.hosts.ssh import remote_line, ssh_command, start_by_ssh

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.timeout(60)
A, B, C = (HostLine(name, None, line) for line, name in enumerate(("node-a", "node-b", "node-c"), 1))
FAKE = """#!/bin/bash
while [ "$1" = -o ]; do shift 2; done
host=$1; line=$2
case $host in
    gone) echo "ssh: connect to host gone port 22: No route to host" >&2; exit 255 ;;
    bare) line=${line/cd /cd /nothing} ;;
esac
exec env HOST=$host bash -c "$line"
"""


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    program = tmp_path / "ssh"
    program.write_text(FAKE)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """Beside what other tests of this process keep."""
    before = set(psutil.Process().children(recursive=True))
    yield
    assert set(psutil.Process().children(recursive=True)) <= before


def test_a_host_is_told_the_directory_the_python_and_where_to_meet(tmp_path: Path) -> None:
    line = remote_line(HostLine("anna@node-b", 4, 2), [A, B], ["train", "a b"], 29500, Path("/some where"))
    module = "-m paceline.launch.hosts.remote train 'a b' --nnodes 2 --rdzv node-a:29500 --nproc 4"
    assert line == f"cd '/some where' && exec {sys.executable} {module}"
    assert "--rdzv" not in remote_line(A, [A], ["train"], 29500, tmp_path)
    command = ssh_command(HostLine("anna@node-b", 4, 2), line)
    assert command[0] == "ssh"
    assert {"BatchMode=yes", "ConnectTimeout=10"} <= set(command)
    assert command[-2:] == ["anna@node-b", line]


@pytest.mark.usefixtures("nothing_is_left")
def test_every_host_runs_it_and_what_they_say_is_told_apart(ssh: str) -> None:
    said: list[str] = []
    # It says that no command has these options: enough to see it was asked there.
    code = start_by_ssh([A, B], ["nonsense"], port=29500, ssh=ssh, say=said.append)
    assert code == 2
    for name in ("node-a", "node-b"):
        assert f"[{name}] UsageError: there is no command 'nonsense'" in "\n".join(said)


@pytest.mark.usefixtures("nothing_is_left")
def test_a_host_that_cannot_be_reached_ends_all_with_its_reason(ssh: str) -> None:
    endless = ["bench", "loader", "--help"]
    began = time.monotonic()
    with pytest.raises(PreflightError) as caught:
        start_by_ssh(
            [A, HostLine("gone", None, 2), HostLine("bare", None, 3)], endless, port=1, ssh=ssh, say=lambda _: None
        )
    first, *_ = caught.value.problems
    assert "gone cannot be reached over ssh: ssh: connect to host gone port 22: No route to host" in first.what
    assert first.where == "hostfile, line 2"
    assert "ssh -o BatchMode=yes gone true" in first.do
    assert time.monotonic() - began < 30


def test_a_directory_that_is_not_there(ssh: str) -> None:
    with pytest.raises(PreflightError, match="bare did not start the command") as caught:
        start_by_ssh([HostLine("bare", None, 1)], ["--version"], port=1, ssh=ssh, say=lambda _: None)
    assert "No such file" in caught.value.problems[0].what
    assert str(Path.cwd()) in caught.value.problems[0].do


def test_no_ssh_at_all(ssh: str) -> None:
    with pytest.raises(UsageError, match="cannot start no-such-ssh"):
        start_by_ssh([A], ["--version"], port=1, ssh="no-such-ssh")


WAITING = "preflight --quick --nnodes 3 --rdzv 127.0.0.1:{port} --wait 300"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_ctrl_c_is_passed_on_and_a_kill_leaves_nobody(ssh: str, tmp_path: Path, how: signal.Signals) -> None:
    """A host that waits for others; whoever started it is interrupted, or killed."""
    code = (
        "import sys; from paceline.launch.hosts.hostfile import HostLine; from paceline.launch.hosts.ssh import start_by_ssh\n"
        "hosts = [HostLine('node-a', None, 1)]\n"
        f"sys.exit(start_by_ssh(hosts, {WAITING.format(port=29877).split()}, port=1, ssh={ssh!r}, say=lambda line: print(line, flush=True)))"
    )
    starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        waiting: list[psutil.Process] = []
        deadline = time.monotonic() + 30
        while not waiting and time.monotonic() < deadline:
            time.sleep(0.1)
            waiting = [
                each
                for each in psutil.Process(starter.pid).children(recursive=True)
                if "preflight" in each.cmdline() and "paceline" in each.cmdline() and listens(each)
            ]
        assert waiting
        os.kill(starter.pid, how)
        assert starter.wait(40) == (130 if how == signal.SIGINT else -signal.SIGKILL)
        _, alive = psutil.wait_procs(waiting, timeout=20)
        assert alive == []
    finally:
        if starter.poll() is None:
            starter.kill()
        starter.communicate()


def listens(process: psutil.Process) -> bool:
    return any(each.status == psutil.CONN_LISTEN for each in process.net_connections())
