from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from paceline.files import read_records
from paceline.supervise.beside import SupervisorProcess
from paceline.supervise.settings import Settings
from paceline.telemetry.pulse import PulseWriter

MOVE = "for step in range(1, 31):\n    pulse.beat(step, 'data'); time.sleep(0.01); pulse.beat(step, 'forward')\n"


@pytest.mark.timeout(60)
def test_a_supervisor_that_was_killed_is_replaced_and_its_incidents_are_heard(fake_run) -> None:
    run = fake_run(1)
    supervisor = SupervisorProcess(run.layout, 1, run.pulses, Settings(stall_floor_s=0.5))
    PulseWriter(run.pulses, 0, 1)
    supervisor.check()
    assert supervisor.pid is None, "there is a rank, but no step yet"
    run.start(0, MOVE + "while True:\n    pulse.beat(31 + int(time.monotonic() * 50), 'forward'); time.sleep(0.01)")
    supervisor.check()
    first = supervisor.pid
    assert first is not None
    supervisor.check()
    assert supervisor.pid == first
    os.kill(first, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while supervisor.pid == first:
        supervisor.check()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(run.processes[0].pid, signal.SIGSTOP)
    while not supervisor.incidents:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    supervisor.close()
    assert supervisor.incidents[0]["finding"]["kind"] == "stopped"
    assert supervisor.incidents[0]["incident"] == "0001-stopped-rank0"
    assert "Traceback" not in run.layout.supervisor_log.read_text()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("is_there", [True, False])
def test_one_that_cannot_be_had_is_told_and_ends_nothing(fake_run, monkeypatch, is_there: bool) -> None:
    run = fake_run(1)
    supervisor = SupervisorProcess(run.layout, 1, run.pulses, Settings())
    PulseWriter(run.pulses, 0, 1).beat(1, "data")
    monkeypatch.setattr(supervisor, "_command", ["false"])
    if not is_there:
        monkeypatch.setattr(subprocess, "Popen", no_process)
    deadline = time.monotonic() + 20
    while not (told := read_records(run.layout.events) if run.layout.events.exists() else []):
        supervisor.check()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    supervisor.check()
    supervisor.close()
    (event,) = told
    assert (event["kind"], event["what"]) == ("warning", "nobody supervises this attempt any more")
    assert ("ended with 1" if is_there else "could not be started") in event["why"]


def no_process(*_: object, **__: object) -> None:
    raise BlockingIOError(11, "Resource temporarily unavailable")
