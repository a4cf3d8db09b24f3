"""Bytes become lines, and none of them is too long."""

from __future__ import annotations

import tracemalloc

from paceline.recipes.command.lines import MOST_BYTES, LineSplitter


def test_lines_end_with_a_newline_or_a_carriage_return_wherever_the_bytes_were_cut() -> None:
    text = "one\ntwo\rthree\r\n\nfünf — und".encode()
    for size in (1, 2, 7, 100):
        lines = LineSplitter()
        found = [line for start in range(0, len(text), size) for line in lines.feed(text[start : start + size])]
        assert [*found, *lines.feed(b"")] == ["one", "two", "three", "", "", "fünf — und"]
        assert lines.feed(b"") == []
        assert not lines.has_cut


def test_of_a_long_line_the_head_and_the_tail_are_read_and_no_number_is_cut() -> None:
    lines = LineSplitter()
    assert lines.feed(b"loss 1 " + b"7" * MOST_BYTES) == []
    assert lines.feed(b"7" * 100_000 + b" iter 5\nshort\n") == ["loss 1  …  iter 5", "short"]
    whole = LineSplitter()
    assert whole.feed(b"x" * MOST_BYTES + b"\n") == ["x" * MOST_BYTES]
    assert not whole.has_cut


def test_a_line_without_an_end_takes_no_more_memory_the_longer_it_is() -> None:
    lines, block = LineSplitter(), b"x" * 65_536
    tracemalloc.start()
    for _ in range(800):  # 50 MB
        assert lines.feed(block) == []
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
    assert lines.has_cut
