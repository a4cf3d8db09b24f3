"""What ranks need of the network, as it is here; broken ones are in test_broken_machines.py."""

from __future__ import annotations

import socket

from paceline.preflight.network import check_network
from tests.preflight.conftest import Build, by_name


def test_the_network_of_this_machine(build: Build) -> None:
    found = by_name(check_network(build(nproc=2)))
    assert set(found) == {"loopback", "hostname"}
    assert found["loopback"].status == "ok"
    assert found["hostname"].values["name"] == socket.gethostname()


def test_an_interface_matters_where_there_is_a_group(build: Build) -> None:
    wrong, right = {"GLOO_SOCKET_IFNAME": "lo,nosuch0"}, {"GLOO_SOCKET_IFNAME": "lo"}
    assert "interface" not in by_name(check_network(build(environment=wrong)))
    assert by_name(check_network(build(nproc=2, environment=right)))["interface"].status == "ok"
    found = by_name(check_network(build(nproc=2, environment=wrong)))["interface"]
    assert (found.status, "no interface nosuch0" in found.found) == ("fail", True)
    assert by_name(check_network(build("parallel.backend=gloo", environment=wrong)))["interface"].status == "fail"
