from __future__ import annotations

import socket

from paceline.supervise.station import Station, find_station, station_of
from paceline.telemetry.run_file import Attempt, AttemptHost


def attempt(*names: str) -> Attempt:
    hosts = [AttemptHost(index, name, f"10.0.0.{index}", 2 * index, 2) for index, name in enumerate(names)]
    return Attempt(1, 2 * len(names) or 4, 1, 0.0, "", [], hosts=hosts)


def test_a_supervisor_has_the_ranks_that_it_is_told_or_that_run_json_says() -> None:
    two = attempt("a", "b")
    assert station_of(two, 1) == Station(1, (2, 3))
    assert station_of(two, 0) == Station(0, (0, 1))
    assert station_of(two, 1, [3]) == Station(1, (3,))
    assert station_of(attempt(), 0) == station_of(attempt(), 0, range(4)) == Station()
    assert Station(1, (2, 3)).is_here(2)
    assert not Station(1, (2, 3)).is_here(1)
    assert not Station(1, (2, 3)).is_leader


def test_who_was_not_told_goes_by_the_name_of_this_machine() -> None:
    here = socket.gethostname()
    assert find_station(attempt()) == Station()
    assert find_station(attempt(here, "b")) == Station(0, (0, 1))
    assert find_station(attempt("a", here)) == Station(1, (2, 3))
    assert find_station(attempt(here, here)) == Station(), "two launchers on one machine: all can be looked at"
    assert find_station(attempt("a", here, here)) == Station(1, (2, 3, 4, 5))
    elsewhere = find_station(attempt("a", "b"))
    assert (elsewhere.ranks, elsewhere.has_ranks) == ((), False)
