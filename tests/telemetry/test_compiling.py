from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.telemetry.compiling import CompileAnnouncer
from paceline.telemetry.pulse import PulseWriter, read_pulse


class Handler:
    """As torch._dynamo.callback has it."""

    def __init__(self) -> None:
        self.start_callbacks: list = []
        self.end_callbacks: list = []

    def register_start_callback(self, callback) -> None:
        self.start_callbacks.append(callback)

    def register_end_callback(self, callback) -> None:
        self.end_callbacks.append(callback)

    def remove_start_callback(self, callback) -> None:
        self.start_callbacks.remove(callback)

    def remove_end_callback(self, callback) -> None:
        self.end_callbacks.remove(callback)


def test_a_compilation_announces_itself_once_torch_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pulse = PulseWriter(tmp_path, 0, 1)
    monkeypatch.delitem(sys.modules, "torch._dynamo.callback", raising=False)
    announcer = CompileAnnouncer(pulse)
    assert not announcer.register()
    announcer.close()
    handler = Handler()
    monkeypatch.setitem(sys.modules, "torch._dynamo.callback", SimpleNamespace(callback_handler=handler))
    assert announcer.register()
    assert announcer.register()
    assert len(handler.start_callbacks) == len(handler.end_callbacks) == 1
    pulse.beat(7, "forward")
    handler.end_callbacks[0](None)
    assert read_pulse(tmp_path, 0).step == 7, "of one that had begun before anybody registered"
    handler.start_callbacks[0](None)
    assert (read_pulse(tmp_path, 0).step, read_pulse(tmp_path, 0).phase) == (7, "compile")
    handler.end_callbacks[0](None)
    assert (read_pulse(tmp_path, 0).step, read_pulse(tmp_path, 0).phase) == (7, "forward")
    handler.start_callbacks.clear()  # torch._dynamo.reset()
    handler.end_callbacks.clear()
    announcer.register()
    assert len(handler.start_callbacks) == len(handler.end_callbacks) == 1
    announcer.close()
    assert handler.start_callbacks == handler.end_callbacks == []
    announcer.register()
    handler.start_callbacks.clear()
    announcer.close()
    pulse.close()


def test_torch_has_what_it_registers_with() -> None:
    callback = pytest.importorskip("torch._dynamo.callback")
    for name in (
        "start_callbacks",
        "register_start_callback",
        "register_end_callback",
        "remove_start_callback",
        "remove_end_callback",
    ):
        assert hasattr(callback.callback_handler, name)
