"""Two hosts on one machine: each has pulses of its own, and what one knows of the other's ranks is what is sent to it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.files import Lock, is_locked, read_json, read_records
from paceline.supervise.attendance import Attendance
from paceline.supervise.beside import SupervisorProcess
from paceline.supervise.settings import Settings
from paceline.supervise.station import Station
from paceline.supervise.supervisor import Supervisor
from paceline.telemetry.pulse import PulseWriter, raw_pulse, store_remote_pulse
from paceline.telemetry.run_file import AttemptHost
from tests.supervise.conftest import FakeRun

MOVE = """
for step in range(1, 31):
    for phase in ("data", "backward", "forward"):
        pulse.beat(step, phase); time.sleep(0.005)
"""
HANG = MOVE + "time.sleep(300)"
WAIT = MOVE + "pulse.beat(30, 'backward'); pulse.enqueue(); time.sleep(300)"
HALT = Settings(policy="halt", stall_floor_s=0.5)
NOTE = Settings(policy="note", stall_floor_s=0.5)
LEADER, MEMBER = Station(0, (0, 1)), Station(1, (2, 3))


class TwoHosts:
    """Ranks 0 and 1 on this host, which owns the run, 2 and 3 on host b."""

    def __init__(self, run: FakeRun, there: Path) -> None:
        self.run = run
        self.there = there
        there.mkdir()
        here = socket.gethostname()
        run.attempt.hosts = [AttemptHost(0, here, "10.0.0.1", 0, 2), AttemptHost(1, "b", "10.0.0.2", 2, 2)]
        run.run.save(run.layout)
        self.supervisors: list[Supervisor] = []

    def send(self) -> None:
        for rank in (2, 3):
            store_remote_pulse(self.run.pulses, rank, raw_pulse(self.there, rank))

    def supervise(self, settings: Settings, station: Station) -> Supervisor:
        attempt = self.run.attempt if station is LEADER else replace(self.run.attempt, pulses=str(self.there))
        self.supervisors.append(Supervisor(self.run.layout, self.run.run, attempt, settings, None, station))
        return self.supervisors[-1]

    def watch(self, until: Callable[[], object], timeout_s: float = 30) -> None:
        deadline = time.monotonic() + timeout_s
        while not until():
            assert time.monotonic() < deadline, [each.findings for each in self.supervisors]
            self.send()
            for supervisor in self.supervisors:
                supervisor.poll()
            time.sleep(0.05)

    def watch_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self.watch(lambda: time.monotonic() > until)


@pytest.fixture
def hosts(fake_run, tmp_path: Path) -> Iterator[TwoHosts]:
    made = TwoHosts(fake_run(4), tmp_path / "there")
    yield made
    for supervisor in made.supervisors:
        supervisor.close()


def living(run: FakeRun) -> list[bool]:
    return [process.poll() is None for process in run.processes]


@pytest.mark.timeout(90)
def test_a_rank_of_the_other_host_that_hangs_is_named_by_the_leader_and_both_add_their_stacks(hosts: TwoHosts) -> None:
    run = hosts.run
    for rank in (0, 1):
        run.start(rank, WAIT)
    run.start(2, WAIT, pulses=hosts.there)
    run.start(3, HANG, pulses=hosts.there)
    leader, member = hosts.supervise(NOTE, LEADER), hosts.supervise(Settings(stall_floor_s=60), MEMBER)
    hosts.watch(lambda: leader.incidents and leader.incidents[0].is_told)
    (incident,) = leader.incidents
    finding = incident.finding
    assert (finding.kind, finding.rank, finding.host, finding.phase) == ("stall", 3, "b", "forward")
    assert "rank 3 on b in forward of step 30" in finding.what
    assert finding.numbers["held_s"] < finding.numbers["limit_s"] + 2, "as late as here, and a loaded machine"
    report = read_json(incident.directory / "report.json")
    assert [rank["host"] for rank in report["ranks"]] == [socket.gethostname()] * 2 + ["b"] * 2
    assert [rank["state"] is None for rank in report["ranks"]] == [False, False, True, True]
    assert "it is on b" in report["stacks"]["missing"]["3"]
    hosts.watch(lambda: len(list((incident.directory / "stacks").glob("*.txt"))) == 4)
    assert "most recent call first" in (incident.directory / "stacks" / "rank_00003.txt").read_text()
    assert member.incidents == []
    report = incident.directory / "report.json"
    hosts.watch(lambda: read_json(report)["stacks"]["missing"] == {})
    clusters = read_json(report)["stacks"]["clusters"]
    assert [cluster["ranks"] for cluster in clusters] == [[0, 1, 2, 3]], "all of them sleep at one line"
    assert "ranks 0-3" in (incident.directory / "report.md").read_text()
    assert incident.finding == finding, "as it was told"


@pytest.mark.timeout(90)
def test_the_leader_ends_its_own_ranks_and_nobody_elses(hosts: TwoHosts) -> None:
    run = hosts.run
    for rank in (0, 1):
        run.start(rank, WAIT)
    # As two launchers on one machine have it: the same directory, and the same processes to see.
    hosts.there.rmdir()
    hosts.there.symlink_to(run.pulses)
    run.start(2, WAIT, pulses=run.pulses)
    run.start(3, HANG, pulses=run.pulses)
    leader = hosts.supervise(HALT, LEADER)
    hosts.watch(lambda: leader.incidents and leader.incidents[0].action == "killed")
    assert leader.incidents[0].finding.rank == 3
    hosts.watch(lambda: living(run)[:2] == [False, False])
    assert living(run)[2:] == [True, True]


@pytest.mark.timeout(90)
def test_a_member_whose_ranks_all_wait_accuses_nobody_and_ends_nobody(hosts: TwoHosts) -> None:
    run = hosts.run
    for rank in (2, 3):
        run.start(rank, WAIT, pulses=hosts.there)
    member = hosts.supervise(Settings(policy="halt", stall_floor_s=0.3), MEMBER)
    hosts.watch(lambda: member.findings)
    (found,) = member.findings
    assert (found.severity, found.cause, found.rank, found.ranks) == ("note", "other_host", None, ())
    assert member.incidents == []
    hosts.watch(lambda: member.incidents, timeout_s=30)  # after the limit that is longer than the leader's
    assert member.findings[0].numbers["held_s"] >= 12 * 0.3 - 0.5
    hosts.watch_for(1.0)
    (incident,) = member.incidents
    assert (incident.action, incident.finding.rank, incident.name) == ("none", None, "0001-stall")
    assert read_json(incident.directory / "report.json")["host_index"] == 1
    assert living(run) == [True, True]


@pytest.mark.timeout(90)
def test_a_member_ends_its_ranks_for_one_that_is_stuck_by_itself_or_stopped(hosts: TwoHosts) -> None:
    run = hosts.run
    run.start(2, WAIT, pulses=hosts.there)
    run.start(3, HANG, pulses=hosts.there)
    member = hosts.supervise(HALT, MEMBER)
    hosts.watch(lambda: member.incidents and member.incidents[0].action == "killed")
    assert (member.incidents[0].finding.rank, member.incidents[0].finding.host) == (3, "b")
    hosts.watch(lambda: living(run) == [False, False])


@pytest.mark.timeout(90)
def test_a_dead_rank_is_named_by_its_own_supervisor_and_by_no_other(hosts: TwoHosts) -> None:
    run = hosts.run
    for rank in (0, 1):
        run.start(rank, WAIT)
    for rank in (2, 3):
        run.start(rank, WAIT, pulses=hosts.there)
    patient = Settings(stall_floor_s=60)
    leader, member = hosts.supervise(patient, LEADER), hosts.supervise(patient, MEMBER)
    hosts.watch_for(0.5)
    os.kill(run.processes[3].pid, signal.SIGKILL)
    hosts.watch(lambda: member.incidents)
    assert (member.incidents[0].finding.kind, member.incidents[0].finding.rank) == ("dead_rank", 3)
    assert member.incidents[0].finding.what.startswith("rank 3 on b of 4 was killed by SIGKILL")
    hosts.watch_for(1.0)
    assert leader.incidents == []
    assert not any(finding.kind == "dead_rank" for finding in leader.findings)


FOLLOW = """
from paceline.telemetry.pulse import read_pulse
pulse.beat(1, "data")
step = 0
while True:
    other = read_pulse(Path({there!r}), 2)
    while other is not None and step < other.step:
        step += 1
        for phase in ("data", "forward", "backward", "optimizer"):
            pulse.beat(step, phase)
        pulse.wait(8.0)
    time.sleep(0.005)
"""


@pytest.mark.timeout(120)
def test_a_straggler_on_the_other_host_is_named_by_the_leader(hosts: TwoHosts) -> None:
    run = hosts.run
    over = threading.Event()

    def train() -> None:
        """Both ranks of the other host: of rank 3 nobody waits, everybody waits for it."""
        with contextlib.ExitStack() as stack:
            writers = [stack.enter_context(contextlib.closing(PulseWriter(hosts.there, rank, 1))) for rank in (2, 3)]
            for step in range(1, 100_000):
                for phase in ("data", "forward", "backward", "optimizer"):
                    for writer in writers:
                        writer.beat(step, phase)
                    if over.wait(0.005):
                        return
                for writer, waited_ms in zip(writers, (8.0, 1.0), strict=True):
                    writer.wait(waited_ms)

    training = threading.Thread(target=train)
    training.start()
    try:
        for rank in (0, 1):
            run.start(rank, FOLLOW.format(there=str(hosts.there)))
        leader = hosts.supervise(Settings(), LEADER)
        hosts.watch(lambda: any(each.kind == "straggler" for each in leader.findings), timeout_s=60)
        (found,) = [each for each in leader.findings if each.kind == "straggler"]
        assert (found.rank, found.host) == (3, "b")
        assert found.what.startswith("rank 3 on b makes every step ")
    finally:
        over.set()
        training.join()


@pytest.mark.timeout(90)
def test_each_host_has_its_own_process_lock_and_log(hosts: TwoHosts) -> None:
    run = hosts.run
    run.start(2, WAIT, pulses=hosts.there)
    pid = run.start(3, WAIT, pulses=hosts.there)
    first = Lock(run.layout.supervisor_lock)
    assert first.acquire(), "the leader's supervisor is there, and in nobody's way"
    supervisor = SupervisorProcess(run.layout, 1, hosts.there, Settings(stall_floor_s=60), (2, 3), 1)
    deadline = time.monotonic() + 30
    supervisor.check()
    while not is_locked(run.layout.supervisor_lock_of(1)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(1.0)
    os.kill(pid, signal.SIGSTOP)
    while not supervisor.incidents:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    supervisor.close()
    assert supervisor.incidents[0]["finding"]["host"] == "b"
    assert "rank 3 on b (pid" in supervisor.incidents[0]["finding"]["what"]
    assert run.layout.supervisor_log_of(1).read_text() == ""
    assert not run.layout.supervisor_log.exists()
    first.release()


@pytest.mark.timeout(60)
def test_what_another_hosts_supervisor_left_is_taken_by_its_own_successor_only(hosts: TwoHosts) -> None:
    run = hosts.run
    run.start(2, WAIT, pulses=hosts.there)
    run.start(3, HANG, pulses=hosts.there)
    first = hosts.supervise(NOTE, MEMBER)
    hosts.watch(lambda: first.incidents and first.incidents[0].is_told)
    hosts.supervisors.remove(first)  # killed, as it were
    first.watch.close()
    leader = hosts.supervise(Settings(stall_floor_s=60), LEADER)
    leader.close()
    hosts.supervisors.remove(leader)
    report = first.incidents[0].directory / "report.json"
    assert read_json(report)["ended"] is None
    second = hosts.supervise(NOTE, MEMBER)
    hosts.watch(lambda: second.incidents)
    assert second.incidents[0].name == first.incidents[0].name
    assert len(list(run.layout.incidents.iterdir())) == 1


@pytest.mark.timeout(60)
def test_a_watcher_shows_the_hosts_and_supervises_nothing_where_no_rank_is(hosts: TwoHosts) -> None:
    run = hosts.run
    for rank in (0, 1):
        run.start(rank, WAIT)
    for rank in (2, 3):
        run.start(rank, WAIT, pulses=hosts.there)
    hosts.send()
    with Attendance(run.layout.root, run.run, wants_halt=False, is_glance=True) as attendance:
        deadline = time.monotonic() + 30
        while not attendance.glance or [rank["phase"] for rank in attendance.glance["ranks"]] != ["backward"] * 4:
            assert time.monotonic() < deadline, attendance.glance
            hosts.send()
            attendance.poll()
        assert [rank["host"] for rank in attendance.glance["ranks"]] == [socket.gethostname()] * 2 + ["b"] * 2
    run.attempt.hosts[0].host = "a"
    with Attendance(run.layout.root, run.run, wants_halt=False) as attendance:
        attendance.poll()
        assert "none of its ranks is on this host" in attendance.notes[0]
        assert not any(finding["severity"] == "critical" for finding in attendance.glance["findings"])
    assert not run.layout.events.exists() or read_records(run.layout.events) == []
