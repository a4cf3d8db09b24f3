"""Who supervises a run that somebody watches, and what its watcher says of it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.diagnose.finding import Finding
from paceline.files import LineWriter, Lock
from paceline.supervise import attendance, turn
from paceline.supervise.attendance import Attendance
from paceline.supervise.inside import InsideWatch
from paceline.telemetry.policy_request import read_policy_request

MOVE = "while True:\n    pulse.beat(1 + int(time.monotonic() * 50), 'forward'); time.sleep(0.01)"


def poll_until(watcher: Attendance, holds) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, watcher.notes
        watcher.poll()
        time.sleep(0.02)


@pytest.mark.timeout(60)
def test_of_two_that_wish_to_halt_the_one_that_stays_keeps_its_wish(fake_run) -> None:
    run = fake_run(1)
    run.start(0, MOVE)
    lock = Lock(run.layout.supervisor_lock)
    lock.acquire()
    with Attendance(run.layout.root, run.run, wants_halt=True):
        with Attendance(run.layout.root, run.run, wants_halt=True):
            pass
        assert read_policy_request(run.layout.policy_requests, 1) == "halt"
    assert read_policy_request(run.layout.policy_requests, 1) is None
    lock.release()


@pytest.mark.timeout(60)
@pytest.mark.slow
def test_a_launcher_is_given_the_time_to_bring_its_supervisor_and_no_more(fake_run, monkeypatch) -> None:
    run = fake_run(1)
    run.attempt.argv = ["paceline", "train", "sasrec"]
    run.run.save(run.layout)
    run.start(0, MOVE)
    monkeypatch.setattr(turn, "_LAUNCHER_S", 1.5)
    theirs = Lock(run.layout.supervisor_lock)
    with Attendance(run.layout.root, run.run, wants_halt=False) as watcher:
        assert "nobody supervises attempt 1 at this moment" in watcher.notes[0]
        assert theirs.acquire(), "left free for the launcher's"
        poll_until(watcher, lambda: watcher.glance and watcher.glance["is_supervised"])
        began = time.monotonic()
        poll_until(watcher, lambda: time.monotonic() > began + 2.5)
        assert watcher.take_lines() == []
        theirs.release()  # it died once too often
        poll_until(watcher, lambda: "supervising attempt 1, policy note" in watcher.notes)
        assert not theirs.acquire()
        replace(run.run, attempts=[run.attempt, replace(run.attempt, attempt=2)]).save(run.layout)
        poll_until(watcher, lambda: watcher.notes[-1].startswith("nobody supervises attempt 2 at this moment"))
        assert theirs.acquire(), "of the next attempt the launcher may bring its own"
    theirs.release()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("is_known", [True, False])
def test_where_nothing_may_be_written_it_says_so_and_tells_what_it_finds(
    fake_run, monkeypatch, capsys, is_known: bool
) -> None:
    from paceline.cli.watch import _follow, _PlainView

    run = fake_run(1)
    run.start(0, MOVE)
    if not is_known:
        run.layout.supervisor_lock.touch()

    def refuse(self: Lock, *, shared: bool = False) -> bool:
        raise OSError(30, "Read-only file system")

    found = Finding("stall", "rank 0 holds it up", "look", severity="critical", rank=0)
    look = InsideWatch.look
    monkeypatch.setattr(InsideWatch, "look", lambda self: (look(self)[0], [found]))
    monkeypatch.setattr(Lock, "acquire", refuse)
    with Attendance(run.layout.root, run.run, wants_halt=False) as watcher:
        who = "nobody does" if is_known else "whether another process does cannot be seen from here"
        assert watcher.notes == [f"cannot supervise attempt 1 (Read-only file system), and {who}: this one shows"]
        began = time.monotonic()

        def wait() -> None:
            watcher.is_running = time.monotonic() < began + 1.5
            time.sleep(0.1)

        monkeypatch.setattr(watcher, "wait", wait)
        _follow(watcher, _PlainView(), once=False)
    assert capsys.readouterr().out.count("stall: rank 0 holds it up") == 1
    assert not run.layout.events.exists()


@pytest.mark.timeout(60)
def test_a_glance_says_that_nobody_supervises(fake_run) -> None:
    run = fake_run(1)
    run.start(0, MOVE)
    with Attendance(run.layout.root, run.run, wants_halt=False, is_glance=True) as watcher:
        watcher.poll()
        assert watcher.notes == ["nobody supervises attempt 1"]
        assert watcher.glance["is_supervised"] is False


@pytest.mark.timeout(60)
def test_without_a_standard_output_it_watches_all_the_same(fake_run) -> None:
    run = fake_run(1)
    run.start(0, MOVE)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = f"exec {sys.executable} -m paceline watch {run.layout.root} >&-"
    watcher = subprocess.Popen(["sh", "-c", command], stderr=subprocess.PIPE, env=environment)
    run.processes.append(watcher)
    lock = Lock(run.layout.supervisor_lock)
    deadline = time.monotonic() + 30
    while watcher.poll() is None and lock.acquire():
        lock.release()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert watcher.poll() is None, watcher.communicate()
    run.attempt.state = run.run.state = "finished"
    run.run.save(run.layout)
    run.owner.release()
    assert watcher.communicate(timeout=30)[1] == b""
    assert watcher.returncode == 0


@pytest.mark.timeout(60)
def test_an_event_of_another_version_or_attempt_or_without_a_text_is_not_believed(fake_run) -> None:
    run = fake_run(1)
    run.start(0, MOVE)
    found = Finding("stall", "rank 0 holds it up", "look", severity="critical", rank=0).to_record()
    event = {"v": 1, "attempt": 1, "kind": "incident", "finding": found, "place": "incidents/1", "action": "killed"}
    others = ({"v": 99}, {"attempt": 2}, {"finding": {"kind": 5}}, {"finding": found | {"what": 7}}, {"place": 3})
    lock = Lock(run.layout.supervisor_lock)
    lock.acquire()
    with Attendance(run.layout.root, run.run, wants_halt=False) as watcher:
        lines = LineWriter(run.layout.events)
        for other in others:
            lines.write_record(event | other)
        watcher.poll()
        assert (watcher.take_lines(), watcher.halted) == ([], None)
        lines.write_record(event | {"action": "none"})
        lines.write_record(event)
        watcher.poll()
        lines.close()
        assert watcher.take_lines() == ["stall: rank 0 holds it up; see incidents/1/report.md", "killed: incidents/1"]
        assert watcher.halted[:2] == ("rank 0 holds it up", "incidents/1")
    lock.release()


@pytest.mark.timeout(60)
def test_on_a_full_disk_it_shows_and_asks_to_halt_when_there_is_room(fake_run, monkeypatch) -> None:
    run = fake_run(1)
    run.start(0, MOVE)
    lock = Lock(run.layout.supervisor_lock)
    lock.acquire()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(attendance, "PolicyWish", refuse)
        watcher = Attendance(run.layout.root, run.run, wants_halt=True)
    with watcher:
        assert "(No space left on device): this one shows, and asks again" in watcher.notes[-1]
        watcher.poll()
        assert watcher.glance["ranks"][0]["step"]
        poll_until(watcher, lambda: read_policy_request(run.layout.policy_requests, 1) == "halt")
        assert watcher.take_lines() == watcher.notes[-1:]
    lock.release()
