"""Names, addresses and interfaces of this host; those of several are in tests/preflight/test_hosts_namespaces.py."""

from __future__ import annotations

import pytest

from paceline.errors import UsageError
from paceline.launch.hosts import address
from paceline.launch.hosts.address import (
    address_of,
    check_interface,
    interface_of,
    local_address_towards,
    own_address,
    parse_meeting_point,
    resolve,
)

HERE = {"eth0": ["10.0.0.7", "fe80::7"], "ib0": [], "lo": ["127.0.0.1", "::1"]}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "list_interfaces", lambda: HERE)


def test_where_to_meet() -> None:
    assert parse_meeting_point("node-a:29500") == ("node-a", 29500)
    assert parse_meeting_point("[2001:db8::1]:1") == ("2001:db8::1", 1)


@pytest.mark.parametrize(
    "text",
    [
        "node-a",
        "node-a:",
        ":29500",
        "node-a:port",
        "a b:1",
        "tcp://a:1",
        "a:0",
        "10.0.0.1:80x",
        "a:65536",
        "a:" + "9" * 5000,
    ],
)
def test_where_nobody_can_meet(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_meeting_point(text)
    assert "--rdzv node-a:29500" in caught.value.problems[0].do


@pytest.mark.parametrize("text", ["0.0.0.0:29500", "[::]:29500", "*:29500"])
def test_every_address_is_none_to_meet_at(text: str) -> None:
    with pytest.raises(UsageError, match="none that others can reach"):
        parse_meeting_point(text)


def test_an_address_in_six_needs_brackets() -> None:
    with pytest.raises(UsageError) as caught:
        parse_meeting_point("fd00::1:29500")
    assert caught.value.problems[0].do == "write an IPv6 address in brackets: --rdzv [fd00::1]:29500"
    assert parse_meeting_point("[fd00::1]:29500") == ("fd00::1", 29500)


def test_a_name_that_resolves_and_one_that_does_not() -> None:
    assert resolve("127.0.0.1") == ["127.0.0.1"]
    for name in ("nosuch.invalid", "a" * 300):
        with pytest.raises(UsageError, match="does not resolve") as caught:
            resolve(name, "flag --rdzv")
        assert caught.value.problems[0].where == "flag --rdzv"
        assert "/etc/hosts" in caught.value.problems[0].do


def test_a_server_of_names_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "ask_addresses", lambda host, within_s: None)
    with pytest.raises(UsageError, match=r"no answer within 0\.5 s"):
        resolve("node-a", within_s=0.5)


def test_the_interface_of_an_address(here: None) -> None:
    assert [interface_of(each) for each in ("10.0.0.7", "fe80::7%eth0", "::1", "127.0.1.1")] == [
        "eth0",
        "eth0",
        "lo",
        "lo",
    ]
    assert interface_of("10.0.0.8") is None
    assert address_of("eth0") == "10.0.0.7"


def test_an_interface_that_is_not_there_is_told_with_those_that_are(here: None) -> None:
    with pytest.raises(UsageError) as caught:
        check_interface("eht0")
    (problem,) = caught.value.problems
    assert "there are: eth0 10.0.0.7, ib0 without address, lo 127.0.0.1" in problem.what
    assert problem.do == "use eth0, 10.0.0.7"
    with pytest.raises(UsageError, match="ib0 has no address"):
        address_of("ib0")
    check_interface("lo")


def test_the_address_towards_another_host() -> None:
    assert local_address_towards("127.0.0.1", 29500) == "127.0.0.1"


def test_a_name_of_this_host_that_is_only_its_loopback_is_refused(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Debian writes it into /etc/hosts: others would never come."""
    names = {"node-a": ["127.0.1.1"], "node-b": ["10.0.0.8"], "node-c": ["10.0.0.7"], "127.0.0.1": ["127.0.0.1"]}
    monkeypatch.setattr(address, "resolve", lambda host, where: names[host])
    with pytest.raises(UsageError, match=r"node-a is 127\.0\.1\.1 here") as caught:
        own_address("node-a")
    assert "10.0.0.7" in caught.value.problems[0].do
    assert [own_address(host) for host in ("node-b", "node-c", "127.0.0.1")] == [None, "10.0.0.7", "127.0.0.1"]


def test_an_address_of_one_link_is_nothing_that_others_could_be_told(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address, "list_interfaces", lambda: {"eth0": ["fe80::7"], "eth1": ["fe80::8", "2001:db8::8"]})
    assert address_of("eth1") == "2001:db8::8"
    with pytest.raises(UsageError, match="eth0 has only fe80::7, an address of one link") as caught:
        address_of("eth0")
    assert caught.value.problems[0].do == "give it one, or choose another: ip address show eth0"
    with pytest.raises(UsageError, match="fe80::7 is fe80::7, an address of one link"):
        resolve("fe80::7")
    monkeypatch.setattr(address, "ask_addresses", lambda host, within_s: ["fe80::9", "2001:db8::9"])
    assert resolve("node-a.local") == ["2001:db8::9"]
