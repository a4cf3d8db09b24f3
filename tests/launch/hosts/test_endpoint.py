"""Where the hosts meet, how many they are, and whether this one can lead."""

from __future__ import annotations

import socket

import pytest

from paceline.errors import UsageError
from paceline.launch.hosts.endpoint import Count, Endpoint, find_free_port, open_listener, parse_count, parse_endpoint


def test_an_endpoint_is_a_host_and_a_port() -> None:
    assert parse_endpoint("node1:29500") == Endpoint("node1", 29500)
    assert str(parse_endpoint("[fd00::1]:29500")) == "[fd00::1]:29500"


@pytest.mark.parametrize("text", ["node1", "node1:", ":29500", "node1:port", "node1:70000", "node1:0", "0.0.0.0:29500"])
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_endpoint(text, "flag --rdzv")
    assert caught.value.problems[0].where == "flag --rdzv"
    assert caught.value.problems[0].do


def test_a_count_is_a_number_or_a_range() -> None:
    assert (parse_count(2), parse_count("1:3")) == (Count(2, 2), Count(1, 3))
    assert str(parse_count("1:3")) == "1:3"
    for wrong in ("two", "3:1", "0", "1:", "-1", "1:2:3", "1001", "9" * 5000):
        with pytest.raises(UsageError, match="is not a number of hosts"):
            parse_count(wrong)


def test_the_host_that_has_the_address_leads_and_the_next_one_there_does_not() -> None:
    endpoint = Endpoint("127.0.0.1", find_free_port("127.0.0.1"))
    listener = open_listener(endpoint)
    assert listener is not None
    with listener:
        assert open_listener(endpoint) is None
    assert open_listener(Endpoint("192.0.2.1", endpoint.port)) is None, "an address of nobody here"


def test_a_leader_that_is_started_again_gets_its_port_at_once() -> None:
    endpoint = Endpoint("127.0.0.1", find_free_port("127.0.0.1"))
    for _ in range(2):
        listener = open_listener(endpoint)
        assert listener is not None
        with listener, socket.create_connection(("127.0.0.1", endpoint.port)):
            accepted, _ = listener.accept()
            accepted.close()
