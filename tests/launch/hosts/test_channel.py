"""One connection: messages, signs of life, silence, and every way in which it can end."""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Iterator

import pytest

from paceline.launch.hosts.channel import Channel, Gone, Inbox
from paceline.launch.hosts.message import Beat, End, Message, Pulses, Report


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Inbox, socket.socket]]:
    """A channel, what it hears, and the bare other end."""
    ours, theirs = socket.socketpair()
    inbox: Inbox = queue.SimpleQueue()
    channel = Channel(ours, inbox, beat_s=0.1)
    yield channel, inbox, theirs
    channel.close()
    theirs.close()


def hear(inbox: Inbox) -> Message | Gone:
    return inbox.get(timeout=5)[1]


@pytest.mark.timeout(30)
def test_lines_are_heard_in_whatever_pieces_they_come(pair: tuple[Channel, Inbox, socket.socket]) -> None:
    _, inbox, theirs = pair
    for piece in (b'{"kind":"Be', b'at"}\n{"kind":"End","attempt":1,', b'"why":"x"}\n'):
        theirs.sendall(piece)
        time.sleep(0.02)
    assert [hear(inbox), hear(inbox)] == [Beat(), End(1, "x")]


@pytest.mark.timeout(30)
def test_it_beats_by_itself_and_counts_the_silence_of_the_other(pair: tuple[Channel, Inbox, socket.socket]) -> None:
    channel, _, theirs = pair
    theirs.settimeout(5)
    assert b'{"kind":"Beat"}\n' in theirs.recv(100)
    time.sleep(0.3)
    assert channel.silent_s > 0.25
    channel.forgive()
    assert channel.silent_s < 0.25


@pytest.mark.timeout(30)
def test_a_long_report_arrives_whole(pair: tuple[Channel, Inbox, socket.socket]) -> None:
    channel, _, theirs = pair
    inbox: Inbox = queue.SimpleQueue()
    other = Channel(theirs, inbox)
    report = Report(1, 1, tail=["x" * 1000] * 2000)
    channel.send(report)
    while isinstance(heard := hear(inbox), Beat):
        pass
    assert heard == report
    other.close()


@pytest.mark.timeout(30)
def test_an_end_is_told_once_with_its_reason(pair: tuple[Channel, Inbox, socket.socket]) -> None:
    channel, inbox, theirs = pair
    theirs.close()
    assert hear(inbox) == Gone("it closed the connection")
    channel.send(End(1, "nobody hears this"))
    with pytest.raises(queue.Empty):
        inbox.get(timeout=0.3)


@pytest.mark.timeout(30)
def test_another_program_is_told_from_a_host(pair: tuple[Channel, Inbox, socket.socket]) -> None:
    _, inbox, theirs = pair
    theirs.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
    heard = hear(inbox)
    assert isinstance(heard, Gone)
    assert heard.is_foreign
    assert "SSH-2.0" in heard.why


@pytest.mark.timeout(30)
def test_closing_it_ourselves_tells_nothing(pair: tuple[Channel, Inbox, socket.socket]) -> None:
    channel, inbox, _ = pair
    channel.close()
    with pytest.raises(queue.Empty):
        inbox.get(timeout=0.7)


@pytest.mark.timeout(30)
def test_what_was_said_last_still_arrives(pair: tuple[Channel, Inbox, socket.socket]) -> None:
    channel, _, theirs = pair
    channel.send(End(1, "the last word"))
    channel.close()
    theirs.settimeout(5)
    heard = b""
    while piece := theirs.recv(1000):
        heard += piece
    assert b"the last word" in heard


@pytest.mark.timeout(30)
def test_a_connection_that_takes_nothing_any_more_blocks_nobody_and_pulses_do_not_pile_up(
    pair: tuple[Channel, Inbox, socket.socket],
) -> None:
    channel, inbox, _ = pair
    began = time.monotonic()
    for _ in range(500):
        channel.send(Pulses(1, {"0": "A" * 100_000}))
    assert channel._outbox.qsize() < 20
    channel.send(End(1, "still said"))
    channel.close()
    assert time.monotonic() - began < 3
    with pytest.raises(queue.Empty):
        inbox.get(timeout=0.3)
