"""Hosts that are checked together, in threads of this process: who came, what differs, who is missing, who left."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.errors import UsageError
from paceline.launch.hosts.facts import HostFacts, collect_facts
from paceline.launch.hosts.message import (
    Beat,
    Invited,
    Listening,
    Look,
    Looked,
    Measure,
    Measured,
    Message,
    Refused,
    Verdict,
    Visit,
    decode,
    encode,
)
from paceline.preflight import hosts, hosts_host
from paceline.preflight.check import Check
from paceline.preflight.hosts import check_hosts
from paceline.preflight.hosts_guest import Meeting, attend, explain_silence
from paceline.preflight.hosts_host import preside
from tests.launch.hosts.conftest import hello
from tests.preflight.conftest import Build, by_name

pytestmark = pytest.mark.timeout(60)
FACTS = dataclasses.replace(collect_facts("127.0.0.1", 2), host="node-a")


class Wire:
    """One side of a connection, by hand."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")
        connection.settimeout(10)

    def send(self, message: Message) -> None:
        self._connection.sendall(encode(message))

    def receive(self) -> Message | None:
        """None: the other side has closed."""
        while line := self._lines.readline():
            message = decode(line)
            if not isinstance(message, Beat):
                return message
        return None

    def close(self) -> None:
        self._lines.close()
        self._connection.close()


def connect(meeting: Meeting) -> Wire:
    return Wire(socket.create_connection((meeting.address, meeting.port), timeout=5))


def listen(address: str, port: int) -> socket.socket:
    return socket.create_server((address, port))


Meet = Callable[..., tuple[list[Check], list[list[Check]]]]


@pytest.fixture
def meet(tmp_path: Path) -> Meet:
    """meet(node_b, node_c, most=3) -> (checks of the first host, those of each guest)."""

    def run(*guests: HostFacts | Callable[[Meeting], object], most: int = 2, wait_s: float = 10, **theirs: object) -> tuple[list[Check], list[list[Check]]]:  # fmt: skip
        server = listen("127.0.0.1", 0)
        meeting = Meeting("node-a", "127.0.0.1", server.getsockname()[1], most, most, wait_s, "f" * 32)
        found: list[list[Check]] = [[] for _ in guests]

        def come(index: int, guest: HostFacts | Callable[[Meeting], object]) -> None:
            other = dataclasses.replace(meeting, **theirs)
            if isinstance(guest, HostFacts):
                found[index] = attend(other, guest)
            else:
                guest(other)

        threads = [threading.Thread(target=come, args=item) for item in enumerate(guests)]
        for thread in threads:
            thread.start()
        with server:
            checks = preside(meeting, FACTS, tmp_path, server)
        for thread in threads:
            thread.join()
        assert list(tmp_path.iterdir()) == [], "the token is gone"
        return checks, found

    return run


def node(name: str, **changes: object) -> HostFacts:
    return dataclasses.replace(FACTS, host=name, **changes)


def test_three_that_fit_and_everybody_gets_the_verdict(meet: Meet) -> None:
    checks, guests = meet(node("node-b"), node("node-c", nproc=1), most=3)
    found = by_name(checks)
    assert found["hosts"].status == found["versions"].status == found["shared directory"].status == "ok"
    assert set(found["hosts"].found.removeprefix("3: ").split(", ")) == {
        "node-a (2 ranks)",
        "node-b (2 ranks)",
        "node-c (1 rank)",
    }
    assert "node-a 127.0.0.1 on lo" in found["interfaces"].found
    assert len([name for name in found if " – " in name]) == 3
    assert len(found["links"].values["links"]) == 6
    assert found["same job"].found.startswith("ffff")
    for guest in guests:
        assert [(check.name, check.status, check.found) for check in guest] == [
            (check.name, check.status, check.found) for check in checks
        ]


def test_another_version_is_refused_with_both_hosts(meet: Meet) -> None:
    checks, (guest,) = meet(node("node-b", torch="2.0.0"))
    (versions,) = [check for check in checks if check.name == "versions"]
    assert versions.status == "fail"
    assert f"torch is {FACTS.torch} on node-a and 2.0.0 on node-b" in versions.found
    assert by_name(guest)["versions"].status == "fail"


def test_another_job_is_another_run(meet: Meet) -> None:
    checks, _ = meet(node("node-b"), fingerprint="e" * 32)
    assert by_name(checks)["same job"].status == "fail"
    assert "node-b: another configuration, or other data" in by_name(checks)["same job"].found


def test_who_does_not_come_is_told_with_those_who_did(meet: Meet) -> None:
    checks, (guest,) = meet(node("node-b"), most=4, wait_s=1.5)
    first = by_name(checks)["hosts"]
    assert first.status == "fail"
    assert "2 of 4 did not come to node-a:" in first.found
    assert "within 1.5 s; here: node-a (2 ranks), node-b (2 ranks)" in first.found
    assert by_name(guest)["hosts"].status == "fail"


def test_another_number_of_hosts_is_refused_at_once(meet: Meet) -> None:
    checks, (guest,) = meet(node("node-b"), wait_s=1.5, least=1)
    assert "--nnodes is 2 there and 1:2 here" in guest[0].found
    assert by_name(checks)["hosts"].status == "fail"


def test_strangers_and_those_who_leave_do_not_count(meet: Meet) -> None:
    def stranger(meeting: Meeting) -> None:
        with socket.create_connection((meeting.address, meeting.port), timeout=5) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
            connection.recv(10)

    def leaver(meeting: Meeting) -> None:
        wire = connect(meeting)
        wire.send(Visit(meeting.size, None, FACTS.to_record()))
        wire.receive()
        wire.send(Listening(1))
        wire.close()

    checks, _ = meet(stranger, leaver, most=3, wait_s=4)
    assert "here: node-a (2 ranks)" in by_name(checks)["hosts"].found


def test_a_guest_that_leaves_while_it_is_measured(meet: Meet) -> None:
    def leaver(meeting: Meeting) -> None:
        begin(meeting, "node-b").close()

    checks, _ = meet(leaver)
    found = by_name(checks)
    assert "node-b has left" in found["shared directory"].found
    assert found["node-a – node-b"].status == "fail"


def begin(meeting: Meeting, name: str) -> Wire:
    """A guest by hand, up to where it is told what to do."""
    wire = connect(meeting)
    wire.send(Visit(meeting.size, "f" * 32, node(name).to_record()))
    assert isinstance(wire.receive(), Invited)
    wire.send(Listening(1))
    assert isinstance(wire.receive(), Look)
    return wire


def test_all_look_for_the_directory_at_the_same_time(meet: Meet) -> None:
    """Else the last of many waits through the limits of those before it, and takes the first host for gone."""
    both = threading.Barrier(2, timeout=10)

    def slow(name: str) -> Callable[[Meeting], None]:
        def come(meeting: Meeting) -> None:
            with contextlib.closing(begin(meeting, name)) as wire:
                both.wait()
                wire.send(Looked("nothing there"))

        return come

    checks, _ = meet(slow("node-b"), slow("node-c"), most=3)
    assert by_name(checks)["shared directory"].found.count("(nothing there)") == 2


def test_who_is_there_and_does_not_answer_has_not_left(meet: Meet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are given the same time, although the second is heard when all of it has passed."""
    monkeypatch.setattr(hosts_host, "_MARGIN_S", 0.4)

    def mute(name: str) -> Callable[[Meeting], None]:
        def come(meeting: Meeting) -> None:
            with contextlib.closing(begin(meeting, name)) as wire:
                wire.send(Beat())
                while isinstance(wire.receive(), Measure):
                    pass

        return come

    checks, _ = meet(mute("node-b"), mute("node-c"), most=3)
    found = by_name(checks)
    for name in ("node-b", "node-c"):
        assert f"({name} did not answer within 0.4 s)" in found["shared directory"].found
        assert f"{name} did not answer within 0.4 s" in found[f"node-a – {name}"].found
    assert not any("has left" in check.found for check in checks)


def test_a_connection_that_cannot_be_accepted_ends_nothing(meet: Meet, monkeypatch: pytest.MonkeyPatch) -> None:
    accept = socket.socket.accept
    troubles = [errno.ECONNABORTED, errno.EMFILE]

    def shaky(server: socket.socket) -> tuple[socket.socket, object]:
        if troubles:
            raise OSError(troubles.pop(), "not now")
        return accept(server)

    monkeypatch.setattr(socket.socket, "accept", shaky)
    checks, _ = meet(node("node-b"))
    assert by_name(checks)["shared directory"].status == "ok"
    assert troubles == []


@pytest.mark.parametrize(
    ("answer", "directory", "link"),
    [
        (Looked(None), "node-b says something else", "not of a paceline preflight"),  # type: ignore[arg-type]
        (Looked(""), "every host sees", "not of a paceline preflight"),
        (Measured(reason="?"), "node-b says something else", "node-b says something else"),
        (Beat(), "node-b has left", "node-b has left"),
    ],
)
def test_answers_that_make_no_sense_are_not_taken_for_good_ones(
    meet: Meet, answer: Message, directory: str, link: str
) -> None:
    def odd(meeting: Meeting) -> None:
        with contextlib.closing(begin(meeting, "node-b")) as wire, contextlib.suppress(OSError):
            wire.send(answer)
            if answer == Looked(""):
                assert isinstance(wire.receive(), Measure)
                wire.send(Measured(float("inf"), float("nan")))
                wire.receive()

    checks, _ = meet(odd)
    assert directory in by_name(checks)["shared directory"].found
    row = by_name(checks)["node-a – node-b"]
    assert (row.status, link in row.found) == ("fail", True), row


def test_a_training_that_comes_to_a_preflight_is_told_so(meet: Meet) -> None:
    told: list[Message | None] = []

    def train(meeting: Meeting) -> None:
        with contextlib.closing(connect(meeting)) as wire:
            wire.send(hello("b"))
            told.append(wire.receive())

    meet(train, wait_s=1.5)
    (refused,) = told
    assert isinstance(refused, Refused)
    assert "a preflight waits for hosts at node-a:" in str(refused.error)


@pytest.mark.parametrize("checks", [None, [3], [{"name": "x"}], [{"name": "x", "status": "fine", "found": ""}]])
def test_a_verdict_that_makes_no_sense(checks: object) -> None:
    server = listen("127.0.0.1", 0)
    meeting = Meeting("node-a", "127.0.0.1", server.getsockname()[1], 2, 2, 5)

    def lead() -> None:
        with contextlib.closing(Wire(server.accept()[0])) as wire:
            wire.receive()
            wire.send(Invited("w"))
            wire.receive()
            wire.send(Verdict(checks))  # type: ignore[arg-type]

    server.settimeout(10)
    thread = threading.Thread(target=lead)
    thread.start()
    (check,) = attend(meeting, node("node-b"))
    thread.join()
    server.close()
    assert check.status == "fail"
    assert "not of a paceline preflight" in check.found


def test_the_first_host_leaves(tmp_path: Path) -> None:
    server = listen("127.0.0.1", 0)
    meeting = Meeting("node-a", "127.0.0.1", server.getsockname()[1], 2, 2, 5)

    def leave() -> None:
        connection, _ = server.accept()
        connection.recv(100)
        connection.close()

    server.settimeout(10)
    thread = threading.Thread(target=leave)
    thread.start()
    (check,) = attend(meeting, node("node-b"))
    thread.join()
    server.close()
    assert check.status == "fail"
    assert "left before it had a verdict" in check.found


@pytest.mark.parametrize(
    ("error", "what", "do"),
    [
        (ConnectionRefusedError(111, "refused"), "is there, but refuses port 7", "start the same command on node-a"),
        (TimeoutError("timed out"), "a firewall drops what comes in", "open TCP port 7 on node-a to 127.0.0.1"),
        (OSError(113, "No route to host"), "has no way to node-a (10.0.0.1)", "ip route get 10.0.0.1"),
        (OSError(101, "Network is unreachable"), "has no way", "ip route get"),
        (OSError(1, "Operation not permitted"), "Operation not permitted", "between node-b and node-a"),
    ],
)
def test_why_nobody_answers_and_which_side_to_mend(error: OSError, what: str, do: str) -> None:
    check = explain_silence(Meeting("node-a", "10.0.0.1", 7, 2, 2, 3), node("node-b"), error)
    assert check.status == "fail"
    assert (what in check.found, do in check.remedy) == (True, True), check


def test_flags_that_cannot_be_used_here(build: Build) -> None:
    two = ("launch.nnodes=2", "launch.rdzv=127.0.0.1:29500")
    with pytest.raises(UsageError, match="there is no interface eht0") as caught:
        check_hosts(build(*two, "launch.interface=eht0"), 1)
    assert caught.value.problems[0].where == "override 'launch.interface=eht0'"
    (check,) = check_hosts(build("launch.nnodes=2", "launch.rdzv=nosuch.invalid:29500"), wait_s=1)
    assert (check.name, check.status) == ("names", "fail")


def test_hosts_may_meet_over_one_interface_and_talk_over_another(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    presided: list[tuple[str, str]] = []

    def preside(meeting: Meeting, facts: HostFacts, *more: object) -> list[Check]:
        presided.append((meeting.address, facts.address))
        return []

    monkeypatch.setattr(hosts, "preside", preside)
    monkeypatch.setattr(hosts, "own_address", lambda host, where: "10.0.0.1")
    monkeypatch.setattr(hosts, "address_of", lambda interface, where: "10.1.0.1")
    monkeypatch.setattr(hosts, "open_listener", lambda endpoint, where: contextlib.nullcontext())
    check_hosts(build("launch.nnodes=2", "launch.rdzv=10.0.0.1:29500", "launch.interface=ib0"), 1)
    assert presided == [("10.0.0.1", "10.1.0.1")]


def test_another_program_has_the_port() -> None:
    def answer() -> None:
        with server.accept()[0] as connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        port = server.getsockname()[1]
        threading.Thread(target=answer, daemon=True).start()
        (check,) = attend(Meeting("::1", "::1", port, 2, 2, 5), node("node-b"))
    assert f"the first host, [::1]:{port}, left" in check.found
    assert f"another program has port {port}: choose another --rdzv" in check.remedy


def test_nobody_listens_there(build: Build) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    (check,) = attend(Meeting("127.0.0.1", "127.0.0.1", port, 2, 2, 1), node("node-b"))
    assert f"refuses port {port} after 1 s" in check.found
