from __future__ import annotations

import signal

import pytest

from paceline.launch.signals import WORDS, OperatorSignals
from paceline.telemetry.stop_request import EXIT_CODES


@pytest.mark.parametrize(
    ("sent", "asked", "wants_kill"),
    [
        ([signal.SIGINT], "ctrl_c", False),
        ([signal.SIGTERM], "sigterm", False),
        ([signal.SIGINT, signal.SIGINT], "ctrl_c", True),
        ([signal.SIGTERM, signal.SIGINT], "sigterm", True),
        ([signal.SIGHUP, signal.SIGHUP], "sigterm", False),
    ],
)
def test_the_first_asks_and_the_second_kills(sent: list[signal.Signals], asked: str, wants_kill: bool) -> None:
    before = signal.getsignal(signal.SIGINT)
    with OperatorSignals() as signals:
        assert signals.asked is None
        for number in sent:
            signal.raise_signal(number)
        assert (signals.asked, signals.wants_kill) == (asked, wants_kill)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_what_was_ignored_stays_ignored(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with OperatorSignals() as signals:
            signal.raise_signal(number)
            assert signals.asked is None
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_every_word_is_a_reason_to_stop() -> None:
    assert WORDS.keys() <= EXIT_CODES.keys()
