"""What the hosts say to each other survives the wire, and what is none of ours is told from it."""

from __future__ import annotations

import json

import pytest

from paceline.launch.hosts.message import (
    Beat,
    Begin,
    Bye,
    End,
    Message,
    Notice,
    Pulses,
    Report,
    WireError,
    decode,
    encode,
)
from tests.launch.hosts.conftest import hello

BEGIN = Begin(2, "abc", 1, 2, 4, 6, "10.9.0.1", 4711, "paceline-1", 2)


@pytest.mark.parametrize(
    "message",
    [
        hello("a", identity={"run.seed": 0}),
        BEGIN,
        End(2, "host b was lost"),
        Report(2, -9, [{"rank": 1}], [[1, -9, 4711]], [], ["a line\nand another"]),
        Bye("finished", "length", 400, 0),
        Notice("2 of 2 hosts here: größer"),
        Pulses(1, {"3": "AAAA"}),
        Beat(),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_is_one_line_and_comes_back_as_it_was(message: Message) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1
    assert decode(line) == message


@pytest.mark.parametrize(
    "line",
    [
        b'{"kind":"End","attempt":"one","why":"x"}',
        b"HTTP/1.1 400 Bad Request\r",
        b"",
        b"[]",
        b"{}",
        b'{"kind": "Order66"}',
        b'{"kind": "End"}',
        b"\xff\xfe",
        b"[" * 5000,
    ],
)
def test_what_is_no_message_is_said_to_be_none(line: bytes) -> None:
    with pytest.raises(WireError, match="no message of Paceline"):
        decode(line)


def test_a_field_of_a_newer_version_is_left_out() -> None:
    record = json.loads(encode(End(1, "why"))) | {"mood": "good"}
    assert decode(json.dumps(record).encode()) == End(1, "why")


def test_a_part_says_which_ranks_it_has() -> None:
    assert list(BEGIN.ranks) == [4, 5]
    assert BEGIN.describe() == "ranks 4 to 5 here, of 6 on 2 hosts"
