"""One attempt under a supervisor, with small processes for ranks: what becomes an incident, what does not, and on how bad a disk."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.diagnose.finding import Finding
from paceline.files import Lock, read_json
from paceline.supervise.attendance import Attendance
from paceline.supervise.curves import Curves
from paceline.supervise.settings import Settings
from paceline.supervise.supervisor import Supervisor
from paceline.telemetry.events import EventLog
from paceline.telemetry.heartbeat import BeatWriter
from paceline.telemetry.pulse import PulseWriter
from paceline.telemetry.reader import read_run
from paceline.telemetry.stop_request import EXIT_CODES, read_stop_request, write_stop_request

MOVE = """
for step in range(1, 31):
    pulse.beat(step, "data"); time.sleep(0.005); pulse.beat(step, "forward"); time.sleep(0.005)
"""
HANG = MOVE + "time.sleep(300)"
WAIT = MOVE + "pulse.beat(30, 'backward'); time.sleep(300)"
HALT = Settings(policy="halt", stall_floor_s=0.5)


def watch(supervisor: Supervisor, until, timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not until():
        assert time.monotonic() < deadline, supervisor.findings
        supervisor.poll()
        supervisor.wait(0.05)


def wishes(run) -> list[Path]:
    return list(run.layout.policy_requests.glob("*"))


@pytest.fixture
def supervise(fake_run):
    made = []

    def make(run, settings: Settings, **options) -> Supervisor:
        made.append(Supervisor(run.layout, run.run, run.attempt, settings, **options))
        return made[-1]

    yield make
    for supervisor in made:
        supervisor.close()


@pytest.mark.timeout(60)
def test_an_incident_ends_by_itself_when_the_rank_goes_on(fake_run, supervise) -> None:
    run = fake_run(2)
    goes_on = MOVE + "\nwhile not (root / 'go').exists(): time.sleep(0.01)\npulse.beat(31, 'data'); time.sleep(300)"
    beats = BeatWriter(run.layout.heartbeat(0), 0, 1)
    beats.write({"step": 1, "phase": "data"})
    with open(run.layout.heartbeat(0), "ab") as file:
        file.write(b'{"v":1,"time":17')  # torn: its writer was killed
    run.start(0, WAIT)
    run.start(1, goes_on)
    supervisor = supervise(run, replace(HALT, policy="note"))
    watch(supervisor, lambda: supervisor.incidents)
    (incident,) = supervisor.incidents
    assert (incident.finding.kind, incident.finding.rank, incident.action) == ("stall", 1, "none")
    assert incident.name == "0001-stall-rank1"
    assert (incident.directory / "beats.jsonl").read_text().count("\n") == 1
    time.sleep(0.3)
    supervisor.poll()
    assert incident.ended is None
    (run.layout.root / "go").touch()
    watch(supervisor, lambda: incident.ended is not None)
    assert read_json(incident.directory / "report.json")["ended"] == incident.ended
    assert len(supervisor.incidents) == 1
    assert all(process.poll() is None for process in run.processes), "noted, and nothing else"


@pytest.mark.timeout(60)
def test_it_ends_when_run_json_says_so_or_has_gone(fake_run, supervise) -> None:
    for end in ("finished", "gone"):
        run = fake_run(1)
        run.start(0, WAIT)
        supervisor = supervise(run, Settings())
        began = time.monotonic()
        watch(supervisor, lambda began=began: time.monotonic() - began > 1.5)
        assert supervisor.is_running
        if end == "gone":
            run.layout.run.unlink()
        else:
            run.attempt.state = "finished"
            run.run.save(run.layout)
        watch(supervisor, lambda supervisor=supervisor: not supervisor.is_running)


@pytest.mark.timeout(60)
def test_a_watcher_may_wish_for_another_policy(fake_run, supervise) -> None:
    """`paceline watch --halt-on-stall` beside a supervisor that only notes."""
    run = fake_run(2)
    run.start(0, WAIT)
    run.start(1, HANG)
    supervisor = supervise(run, replace(HALT, policy="note"))
    watch(supervisor, lambda: supervisor.incidents)
    lock = Lock(run.layout.supervisor_lock)
    lock.acquire()
    with Attendance(run.layout.root, run.run, wants_halt=True) as attendance:
        attendance.poll()
        assert "is supervised by another process" in attendance.notes[0]
        assert len(attendance.glance["ranks"]) == 2
        watch(supervisor, lambda: supervisor.incidents[0].action == "killed")
        attendance.poll()
        assert attendance.halted is not None
        assert "rank 1" in attendance.halted[0]
    assert [process.wait(10) for process in run.processes] == [-9, -9]
    assert wishes(run) == [], "taken back when the watcher leaves"
    assert supervisor.incidents[0].policy == "halt"
    (note,) = read_run(run.layout.root).events_of("note")
    assert note["what"] == "supervise.policy=halt from here on"
    lock.release()


@pytest.mark.timeout(60)
def test_a_wish_goes_with_the_terminal_of_its_watcher(fake_run) -> None:
    run = fake_run(1)
    run.start(0, MOVE + "time.sleep(300)")
    lock = Lock(run.layout.supervisor_lock)
    lock.acquire()
    words = [sys.executable, "-m", "paceline", "watch", str(run.layout.root), "--halt-on-stall"]
    watcher = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    run.processes.append(watcher)
    assert any(b"asked its supervisor to halt" in line for line in watcher.stdout)
    assert len(wishes(run)) == 1
    watcher.send_signal(signal.SIGHUP)
    watcher.communicate(timeout=30)
    assert watcher.returncode == 130
    assert wishes(run) == []
    lock.release()


@pytest.mark.timeout(60)
def test_of_two_watchers_the_second_takes_over_when_the_first_has_gone(fake_run) -> None:
    run = fake_run(1)
    run.start(0, "while True:\n    pulse.beat(1 + int(time.monotonic() * 50), 'forward'); time.sleep(0.01)")
    with Attendance(run.layout.root, run.run, wants_halt=False) as first:
        assert first.notes == ["supervising attempt 1, policy note"]
        second = Attendance(run.layout.root, run.run, wants_halt=True)
        assert "is supervised by another process" in second.notes[0]
        first.poll()
        second.poll()
        assert len(wishes(run)) == 1
    deadline = time.monotonic() + 20
    while not (lines := second.take_lines()):
        assert time.monotonic() < deadline
        second.poll()
        time.sleep(0.05)
    assert lines == ["supervising attempt 1, policy halt"]
    assert wishes(run) == [], "it acts itself"
    second.__exit__(None, None, None)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("recipe", ["sdk", "sasrec"])
def test_ranks_that_still_advance_are_asked_to_stop_together(fake_run, supervise, monkeypatch, recipe: str) -> None:
    """A loss that is not a number: a foreign loop would go on with it for ever; of our own, train.nonfinite decides."""
    run = fake_run(1)
    run.run.recipe = recipe
    run.start(0, "while True:\n    pulse.beat(1 + int(time.monotonic() * 50), 'forward'); time.sleep(0.01)")
    nan = Finding("not_finite", "the loss is not a number", "lower the rate", severity="critical", step=3)
    monkeypatch.setattr(Curves, "judge", lambda self: [nan])
    supervisor = supervise(run, HALT)
    if recipe == "sdk":
        watch(supervisor, lambda: supervisor.incidents and supervisor.incidents[0].action == "asked")
        request = read_stop_request(run.layout.stop_request, 1)
        assert (request.reason, EXIT_CODES[request.reason]) == ("halted", 5)
        assert supervisor.incidents[0].name in request.by
        assert supervisor.incidents[0].stacks is None
    else:
        for _ in range(3):
            supervisor.poll()
        assert supervisor.incidents == []
    assert run.processes[0].poll() is None


@pytest.mark.parametrize(("recipe", "do"), [("sdk", "set num_workers=0"), ("sasrec", "set data.num_workers=0")])
def test_nobody_is_told_of_keys_that_his_loop_has_not(fake_run, supervise, monkeypatch, recipe: str, do: str) -> None:
    run = fake_run(1)
    run.run.recipe = recipe
    run.run.save(run.layout)
    grows = Finding("memory_growth", "the memory of rank 0 grows", "set data.num_workers=0", rank=0)
    supervisor = supervise(run, HALT)
    monkeypatch.setattr(supervisor.watch, "look", lambda: (None, [grows]))
    supervisor.poll()
    (event,) = read_run(run.layout.root).events_of("finding")
    assert event["finding"]["do"] == do
    with Attendance(run.layout.root, run.run, wants_halt=False, is_glance=True) as attendance:
        sight, _ = attendance._watch.look()
        monkeypatch.setattr(attendance._watch, "look", lambda: (sight, [grows]))
        attendance.poll()
        assert [finding["do"] for finding in attendance.glance["findings"]] == [do]


@pytest.mark.timeout(60)
@pytest.mark.slow
def test_a_rank_that_goes_on_soon_after_it_was_noticed_is_not_killed(fake_run, supervise) -> None:
    """It is noticed before its limit is over, and acted upon only when that is over by as much again as the floor."""
    run = fake_run(2)
    again = "while not (root / 'go').exists(): time.sleep(0.01)" + MOVE.replace("range(1, 31)", "range(31, 90)")
    waits = "pulse.beat(step, 'backward')\n"
    run.start(0, f"{MOVE}{waits}{again}{waits}time.sleep(300)")
    run.start(1, f"{MOVE}{again}time.sleep(300)")
    supervisor = supervise(run, replace(HALT, stall_floor_s=2.0))
    watch(supervisor, lambda: supervisor.incidents)
    (incident,) = supervisor.incidents
    assert "(told within its limit: 1.7 s; 99 % of " in incident.finding.what
    for _ in range(10):
        supervisor.poll()
        supervisor.wait(0.05)
    assert incident.action == "none"
    (run.layout.root / "go").touch()
    watch(supervisor, lambda: incident.ended is not None)
    assert all(process.poll() is None for process in run.processes)
    watch(supervisor, lambda: incident.action == "killed")
    assert [each is incident for each in supervisor.incidents] == [True], "it has come back"
    assert incident.times == 2
    assert incident.ended - incident.finding.since >= 1.7 + 2.0
    assert [process.wait(10) for process in run.processes] == [-9, -9]


def test_memory_that_grows_is_told_once(fake_run, supervise, monkeypatch) -> None:
    """By its process, with the rank; and by the table, whose column is that of the same process."""
    run = fake_run(1)
    of_rank = Finding("memory_growth", "the memory of rank 0 grows", "look", rank=0)
    of_table = Finding("memory_growth", "memory grows", "look")
    monkeypatch.setattr(Curves, "judge", lambda self: [of_table])
    supervisor = supervise(run, HALT)
    monkeypatch.setattr(supervisor.watch, "look", lambda: (None, [of_rank]))
    for _ in range(3):
        supervisor.poll()
    assert [event["finding"]["rank"] for event in read_run(run.layout.root).events_of("finding")] == [0]


@pytest.mark.timeout(60)
def test_on_a_full_disk_it_acts_and_tells_all_the_same(fake_run, supervise, tmp_path, monkeypatch, capfd) -> None:
    run = fake_run(2)
    (run.layout.root / "incidents").write_text("")  # no directory can be made there
    run.layout.events.symlink_to("/dev/full")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "spare"))
    (tmp_path / "spare").mkdir()
    told = []
    run.start(0, WAIT)
    run.start(1, HANG)
    supervisor = supervise(run, HALT, tell=told.append)
    watch(supervisor, lambda: told and told[-1]["action"] == "killed")
    assert [process.wait(10) for process in run.processes] == [-9, -9]
    assert told[-1]["finding"]["rank"] == 1
    place = Path(told[-1]["place"])
    assert place.is_relative_to(tmp_path / "spare")
    assert read_json(place / "report.json")["action"] == "killed"
    assert "No space left on device" in capfd.readouterr().err


@pytest.mark.timeout(60)
def test_a_run_directory_that_was_removed_is_no_reason_to_leave_the_ranks_hanging(
    fake_run, supervise, tmp_path, monkeypatch
) -> None:
    run = fake_run(2)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "spare"))
    (tmp_path / "spare").mkdir()
    run.start(0, WAIT)
    run.start(1, HANG)
    told = []
    supervisor = supervise(run, HALT, tell=told.append)
    supervisor.poll()
    shutil.rmtree(run.layout.root)
    run.layout.root.touch()  # nothing can be made there again
    watch(supervisor, lambda: told and told[-1]["action"] == "killed")
    assert [process.wait(10) for process in run.processes] == [-9, -9]
    assert (told[-1]["finding"]["kind"], told[-1]["finding"]["rank"]) == ("stall", 1)
    assert Path(told[-1]["place"]).is_relative_to(tmp_path / "spare")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("excuse", ["asked", "failure", "end", ""])
def test_ranks_that_end_after_a_word_are_no_incident(fake_run, supervise, excuse: str) -> None:
    run = fake_run(2)
    run.start(0, WAIT)
    run.start(1, HANG)
    supervisor = supervise(run, HALT)
    supervisor.poll()
    events = EventLog(run.layout.events, "rank 1", 1)
    if excuse == "asked":
        write_stop_request(run.layout.stop_request, 1, "ctrl_c", "a test")
    elif excuse:
        events.write(excuse, rank=1, secondary=False)
    else:
        events.write("failure", rank=0, secondary=True)
        write_stop_request(run.layout.stop_request, 7, "ctrl_c", "another attempt")
    os.kill(run.processes[1].pid, signal.SIGKILL)
    if excuse:
        for _ in range(5):
            supervisor.poll()
            supervisor.wait(0.05)
        assert supervisor.incidents == []
    else:
        watch(supervisor, lambda: supervisor.incidents)
        finding = supervisor.incidents[0].finding
        assert (finding.kind, finding.rank) == ("dead_rank", 1)
        assert supervisor.incidents[0].to_record()["ranks"][1]["exit_code"] == -9
        watch(supervisor, lambda: supervisor.incidents[0].action == "killed")
        assert run.processes[0].wait(10) == -9, "nobody else ended the one that was left"


@pytest.mark.timeout(60)
def test_where_there_is_room_nowhere_it_acts_and_writes_into_nobodys_directory(
    fake_run, supervise, tmp_path, monkeypatch, capfd
) -> None:
    run = fake_run(2)
    run.layout.incidents.touch()
    (tmp_path / "none").touch()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    run.start(0, WAIT)
    run.start(1, HANG)
    heard = []
    supervisor = supervise(run, HALT, tell=heard.append)
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
        watch(supervisor, lambda: heard and heard[-1]["action"] == "killed")
    assert heard[-1]["finding"]["rank"] == 1
    assert [process.wait(10) for process in run.processes] == [-9, -9]
    assert list((tmp_path / "here").iterdir()) == []
    assert "an incident cannot be written" in capfd.readouterr().err


@pytest.mark.timeout(60)
@pytest.mark.parametrize("free", [0, 10**6])
def test_a_rank_that_could_not_say_that_the_disk_is_full(fake_run, supervise, monkeypatch, free: int) -> None:
    run = fake_run(2)
    run.start(0, WAIT)
    run.start(1, MOVE + "import os; os._exit(4)")
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free, f_frsize=4096))
    supervisor = supervise(run, HALT)
    if free:
        deadline = time.monotonic() + 1.5
        watch(supervisor, lambda: time.monotonic() > deadline)
        assert supervisor.incidents == [], "it has told its launcher"
    else:
        watch(supervisor, lambda: supervisor.incidents)
        (incident,) = supervisor.incidents
        assert (incident.finding.kind, incident.finding.rank) == ("disk_full", 1)
        supervisor.poll()
        assert incident.action == "none"


@pytest.mark.timeout(60)
def test_a_missing_pulse_one_of_another_version_and_clocks_that_jump_alarm_nobody(
    fake_run, supervise, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fake_run(3)
    run.start(0, "while True:\n    pulse.beat(1 + int(time.monotonic() * 50), 'forward'); time.sleep(0.01)")
    PulseWriter(run.pulses, 1, 1)
    other = run.pulses / "rank_00001"
    other.write_bytes(other.read_bytes()[:4] + (99).to_bytes(4, "little") + other.read_bytes()[8:])
    supervisor = supervise(run, Settings(policy="halt", stall_floor_s=0.2))
    for jump in (0, 3600, -7200, 0, 0):
        real = time.time
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda jump=jump, real=real: real() + jump)
            supervisor.poll()
            supervisor.wait(0.1)
    assert supervisor.findings == []
    assert [seen.pulse is None for seen in supervisor.sight.ranks] == [False, True, True]
    # The machine stood still: nobody watched, so nobody can say that a rank did not move.
    real_clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real_clock() + 600)
    before = supervisor.sight.monotonic
    supervisor.poll()
    assert supervisor.sight.monotonic - before < 1.5
    assert supervisor.findings == []


@pytest.mark.timeout(60)
@pytest.mark.slow
def test_a_second_supervisor_waits_for_the_first_to_go_and_the_process_ends_with_its_attempt(fake_run) -> None:
    run = fake_run(1)
    run.start(0, WAIT)
    BeatWriter(run.layout.heartbeat(0), 0, 1).write({"step": 1, "phase": "data"})
    command = [sys.executable, "-m", "paceline.supervise", str(run.layout.root), "--attempt", "1"]
    lock = Lock(run.layout.supervisor_lock)
    lock.acquire()
    waiting, sent_away = (subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2))
    run.processes += [waiting, sent_away]
    for process in (waiting, sent_away):
        assert b"supervised by another process: waiting" in process.stderr.readline()
    sent_away.terminate()
    assert sent_away.communicate(timeout=20) == (b"", b"")
    assert (sent_away.returncode, waiting.poll()) == (0, None)
    lock.release()
    deadline = time.monotonic() + 20
    while lock.acquire():
        lock.release()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    run.attempt.state = "finished"
    run.run.save(run.layout)
    assert waiting.communicate(timeout=20) == (b"", b"")
    assert waiting.returncode == 0
    assert read_run(run.layout.root).events == []
