"""Hosts as network namespaces on one bridge, each with an address and a name of its own; links that are cut, slow or one way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(120)
LEAD = "10.187.3.1"


def _why_not() -> str:
    if os.geteuid() != 0:
        return "namespaces need root"
    missing = [program for program in ("ip", "unshare") if shutil.which(program) is None]
    if missing:
        return f"there is no {missing[0]} here"
    done = subprocess.run(["unshare", "-n", "true"], capture_output=True, text=True, timeout=20, check=False)
    return f"no namespaces here: {done.stderr.strip()}" if done.returncode else ""


class Hosts:
    """Namespaces 1 to n, host number i with the address 10.187.3.i."""

    def __init__(self, directory: Path) -> None:
        self._mark, self._directory = uuid.uuid4().hex[:6], directory
        self._bridge = f"pb{self._mark}"
        self._made: list[str] = []
        self.names: list[str] = []
        self._started: list[subprocess.Popen[str]] = []

    def build(self, count: int) -> None:
        # The bridge lives in a namespace of its own: nothing of this machine's network is touched.
        self._add(self._bridge)
        self.inside(self._bridge, "ip", "link", "add", "bridge", "type", "bridge")
        self.inside(self._bridge, "ip", "link", "set", "bridge", "up")
        for number in range(1, count + 1):
            name = f"ph{self._mark}{number}"
            self.names.append(name)
            self._add(name)
            self.inside(name, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", f"port{number}", "netns", self._bridge)  # fmt: skip
            self.inside(self._bridge, "ip", "link", "set", f"port{number}", "master", "bridge", "up")
            self.inside(name, "ip", "address", "add", f"10.187.3.{number}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                self.inside(name, "ip", "link", "set", device, "up")

    def _add(self, name: str) -> None:
        self.ip("netns", "add", name)
        self._made.append(name)

    def ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)

    def inside(self, name: str, *words: str) -> None:
        done = subprocess.run(
            ["ip", "netns", "exec", name, *words], capture_output=True, text=True, timeout=20, check=False
        )
        assert done.returncode == 0, (words, done.stderr)

    def on(self, number: int, *words: str) -> None:
        self.inside(self.names[number - 1], *words)

    def preflight(self, number: int, *words: str, before: str = "") -> subprocess.Popen[str]:
        """`paceline preflight --json` on one host, which has a name of its own."""
        command = f"{sys.executable} -m paceline preflight --quick --json {' '.join(words)}"
        script = f"hostname node-{number}; {before} exec {command}"
        started = subprocess.Popen(
            ["ip", "netns", "exec", self.names[number - 1], "unshare", "-u", "-m", "sh", "-euc", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self._directory,
            env=os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        )
        self._started.append(started)
        return started

    def close(self) -> None:
        for started in self._started:
            if started.poll() is None:
                started.kill()
            started.communicate()
        for name in self._made:
            self.ip("netns", "delete", name)


@pytest.fixture
def hosts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hosts]:
    if _why_not():
        pytest.skip(_why_not())
    made = Hosts(tmp_path)
    try:
        made.build(request.param)  # what fails in the middle leaves nothing, either
        yield made
    finally:
        made.close()


def found(started: subprocess.Popen[str], within_s: float = 60) -> dict[str, dict[str, Any]]:
    """The checks of the hosts together, by name."""
    output, errors = started.communicate(timeout=within_s)
    assert started.returncode in (0, 3), errors
    return {check["name"]: check for check in json.loads(output)["checks"] if check["family"] == "hosts"}


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_two_hosts_that_fit(hosts: Hosts, tmp_path: Path) -> None:
    words = ("--nnodes", "2", "--rdzv", f"{LEAD}:29500")
    both = [hosts.preflight(number, *words) for number in (2, 1)]
    for checks in map(found, both):
        assert checks["hosts"]["found"] == "2: node-1 (1 rank), node-2 (1 rank)"
        assert "node-1 10.187.3.1 on eth0, node-2 10.187.3.2 on eth0" in checks["interfaces"]["found"]
        assert {checks[name]["status"] for name in ("hosts", "versions", "shared directory", "interfaces")} == {"ok"}
        assert {link["from"] for link in checks["links"]["values"]["links"]} == {"node-1", "node-2"}
        assert all(link["bytes_per_s"] > 1e6 for link in checks["links"]["values"]["links"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_a_directory_that_only_one_host_has(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    words = ("--nnodes", "2", "--rdzv", f"{LEAD}:29500", "--out", f"{tmp_path}/data/run")
    guest = hosts.preflight(2, *words, before=f"mount -t tmpfs none {tmp_path}/data;")
    shared = found(hosts.preflight(1, *words))["shared directory"]
    assert shared["status"] == "fail"
    assert f"{tmp_path}/data of node-1 is not the same on node-2 (No such file or directory)" in shared["found"]
    assert found(guest)["shared directory"]["status"] == "fail"


@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_the_slow_host_of_three_is_named(hosts: Hosts) -> None:
    if shutil.which("tc") is None:
        pytest.skip("there is no tc here to slow a link down")
    # The others, too, have a rate: how fast they were without one would be a matter of who has a core.
    for number, rate, burst in ((1, "200mbit", "256k"), (2, "200mbit", "256k"), (3, "8mbit", "32k")):
        limit = ("root", "tbf", "rate", rate, "burst", burst, "latency", "50ms")
        hosts.on(number, "tc", "qdisc", "add", "dev", "eth0", *limit)
    words = ("--nnodes", "3", "--rdzv", f"{LEAD}:29500")
    started = [hosts.preflight(number, *words) for number in (1, 2, 3)]
    links = found(started[0])["links"]
    assert links["status"] == "warn"
    assert "every link of node-3: under half of the fastest" in links["found"]
    for other in started[1:]:
        assert "every link of node-3" in found(other)["links"]["found"]


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_a_port_that_is_blocked_is_said_on_the_side_that_notices(hosts: Hosts) -> None:
    """The first host's answers are dropped, as a firewall drops them; then it cannot be reached at all."""
    hosts.on(1, "ip", "route", "add", "blackhole", "10.187.3.2/32")
    words = ("--nnodes", "2", "--rdzv", f"{LEAD}:29500", "--wait", "4")
    lead, guest = (hosts.preflight(number, *words) for number in (1, 2))
    check = found(guest)["rendezvous"]
    assert check["status"] == "fail"
    assert f"no answer from {LEAD} at port 29500 after 4 s" in check["found"]
    assert "open TCP port 29500 on 10.187.3.1 to 10.187.3.2" in check["remedy"]
    assert "1 of 2 did not come to 10.187.3.1:29500 within 4 s; here: node-1" in found(lead)["hosts"]["found"]


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_nothing_listens_no_way_leads_there_a_wrong_interface(hosts: Hosts) -> None:
    words = ("--nnodes", "2", "--wait", "4", "--rdzv")
    nobody, nowhere, outside = (
        hosts.preflight(2, *words, to) for to in (f"{LEAD}:29500", "10.187.3.77:1", "10.9.9.9:1")
    )
    wrong = hosts.preflight(2, "--interface", "eht0", *words, f"{LEAD}:29500")
    assert "refuses port 29500" in found(nobody)["rendezvous"]["found"]
    assert "No route to host" in found(nowhere)["rendezvous"]["found"]
    assert "there is no way from node-2 to 10.9.9.9" in found(outside)["names"]["found"]
    _, errors = wrong.communicate(timeout=30)
    assert wrong.returncode == 2
    assert "there is no interface eht0 on node-2 (there are: eth0 10.187.3.2, lo 127.0.0.1)" in errors
