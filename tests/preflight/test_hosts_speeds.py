"""Which link is slow, by the rule that the file states, on made-up speeds."""

from __future__ import annotations

import errno
import socket
from itertools import permutations

import pytest

from paceline.preflight.hosts_links import LinkLost, LinkServer, Speed, measure_link
from paceline.preflight.hosts_speeds import Link, describe_rate, describe_time, find_long, find_slow, judge_links

NAMES = ["node-a", "node-b", "node-c"]


def links(count: int, slow: dict[tuple[int, int], float] | None = None, long: dict[tuple[int, int], float] | None = None) -> list[Link]:  # fmt: skip
    """Every direction at 1 GB/s and 50 µs, but for these."""
    return [
        Link(*pair, Speed((slow or {}).get(pair, 1e9), (long or {}).get(pair, 50e-6)))
        for pair in permutations(range(count), 2)
    ]


def test_equal_links_are_a_line_each() -> None:
    verdict, *rows = judge_links(links(3, {(0, 1): 0.6e9}), NAMES)
    assert (verdict.status, len(rows)) == ("ok", 3)
    assert "0.60 GB/s to 1.00 GB/s one way between 3 hosts" in verdict.found
    assert [row.name for row in rows] == ["node-a – node-b", "node-a – node-c", "node-b – node-c"]
    assert rows[0].found == "0.60 GB/s there, 1.00 GB/s back; 50 µs"
    assert verdict.values["links"][0]["bytes_per_s"] == 0.6e9


def test_the_slow_pair_is_named() -> None:
    verdict, *rows = judge_links(links(3, {(0, 2): 0.4e9}), NAMES)
    assert verdict.status == "warn"
    assert "node-a – node-c: under half of the fastest" in verdict.found
    assert [row.status for row in rows] == ["ok", "warn", "ok"]


def test_where_every_link_of_a_host_is_slow_it_is_that_host() -> None:
    slow = {(0, 2): 1e8, (2, 0): 1e8, (1, 2): 1e8, (2, 1): 1e8}
    verdict, *_ = judge_links(links(3, slow), NAMES)
    assert "every link of node-c: under half" in verdict.found
    assert len(find_slow(links(3, slow))) == 4


def test_of_two_hosts_one_direction_may_be_slow() -> None:
    verdict, row = judge_links(links(2, {(1, 0): 1e8}), NAMES[:2])
    assert "node-a – node-b: under half" in verdict.found
    assert row.status == "warn"


def test_a_long_way_there_and_back() -> None:
    assert find_long(links(3, long={(0, 1): 400e-6})) == [], "four times a little is still a little"
    verdict, *_ = judge_links(links(3, long={(0, 1): 2e-3}), NAMES)
    assert "node-a – node-b: a long way there and back" in verdict.found


def test_a_link_that_cannot_be_used_fails_with_the_side_to_open() -> None:
    broken = [Link(0, 1, None, "no answer (10.0.0.2 port 4)") if (each.sender, each.receiver) == (0, 1) else each for each in links(2)]  # fmt: skip
    *_, row = judge_links(broken, NAMES[:2])
    assert (row.status, row.found) == ("fail", "node-a cannot reach node-b: no answer (10.0.0.2 port 4)")
    assert "open all TCP ports on node-b" in row.remedy
    (only,) = judge_links([Link(0, 1, None, "x"), Link(1, 0, None, "y")], NAMES[:2])
    assert "on node-b and node-a" in only.remedy


def test_of_many_hosts_only_those_that_stand_out_have_a_line() -> None:
    names = [f"node-{number}" for number in range(12)]
    verdict, *rows = judge_links(links(12, {(3, 7): 1e8}), names)
    assert [row.name for row in rows] == ["node-3 – node-7"]
    assert len(verdict.values["links"]) == 132


@pytest.mark.timeout(30)
def test_a_link_to_ourselves_is_measured_and_a_stranger_is_sent_away() -> None:
    with LinkServer("127.0.0.1", "word") as server:
        speed = measure_link("127.0.0.1", server.port, "word", 0.1)
        with pytest.raises(LinkLost):
            measure_link("127.0.0.1", server.port, "another", 0.1)
        again = measure_link("127.0.0.1", server.port, "word", 0.1)
    assert min(speed.bytes_per_s, again.bytes_per_s) > 1e6
    assert 0 < speed.latency_s < 1


@pytest.mark.timeout(30)
def test_a_connection_that_cannot_be_accepted_does_not_end_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    accept, troubles = socket.socket.accept, [errno.EMFILE]

    def shaky(server: socket.socket) -> tuple[socket.socket, object]:
        if troubles:
            raise OSError(troubles.pop(), "not now")
        return accept(server)

    monkeypatch.setattr(socket.socket, "accept", shaky)
    with LinkServer("127.0.0.1", "word") as server:
        assert measure_link("127.0.0.1", server.port, "word", 0.1).bytes_per_s > 1e6
    assert troubles == []


def test_figures_for_people() -> None:
    assert [describe_rate(rate) for rate in (12.5e9, 125e6, 3e6, 4e3)] == [
        "12.50 GB/s",
        "0.12 GB/s",
        "3.0 MB/s",
        "4.0 kB/s",
    ]
    assert [describe_time(time_s) for time_s in (45e-6, 2e-3)] == ["45 µs", "2.0 ms"]
