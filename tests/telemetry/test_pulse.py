"""A pulse is whole or not there: beside a writer at full speed, after the writer's death, and when the record is not one of ours."""

from __future__ import annotations

import errno
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.telemetry.pulse import (
    PHASES,
    Pulse,
    PulseReader,
    PulseWriter,
    create_pulse_directory,
    find_pulse_directories,
    raw_pulse,
    read_pulse,
    read_pulses,
    remote_pulses,
    remove_pulse_directory,
    store_remote_pulse,
)

RECORD = "rank_00003"
SEQUENCE_AT = 24

WRITING = """
import sys
from pathlib import Path
from paceline.telemetry.pulse import PHASES, PulseWriter
writer, step = PulseWriter(Path(sys.argv[1]), rank=3, attempt=2), 0
print("ready", flush=True)
while True:
    step += 1
    writer.enqueued, writer.completed = 3 * step, 2 * step
    writer.beat(step, PHASES[step % len(PHASES)])
"""


def start_writer(directory: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITING, str(directory)], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.timeout(60)
def test_a_reader_beside_a_writer_at_full_speed_sees_whole_records(tmp_path: Path) -> None:
    process = start_writer(tmp_path)
    found: list[Pulse] = []
    try:
        while len({pulse.step for pulse in found}) < 100:
            found += [pulse for pulse in (read_pulse(tmp_path, 3) for _ in range(500)) if pulse is not None]
    finally:
        process.kill()
        process.communicate(timeout=30)
    for pulse in found:
        assert (pulse.rank, pulse.pid, pulse.attempt) == (3, process.pid, 2)
        assert pulse.phase == PHASES[pulse.step % len(PHASES)]
        assert (pulse.collectives_enqueued, pulse.collectives_completed) == (3 * pulse.step, 2 * pulse.step)
    steps = [pulse.step for pulse in found]
    assert steps == sorted(steps)


@pytest.mark.timeout(60)
def test_the_sequence_number_never_looks_even_while_a_record_is_written(tmp_path: Path) -> None:
    """One in fifty readings saw a zero when the number was written byte by byte."""
    process = start_writer(tmp_path)
    try:
        descriptor = os.open(tmp_path / RECORD, os.O_RDONLY)
        numbers = [int.from_bytes(os.pread(descriptor, 8, SEQUENCE_AT), "little") for _ in range(50_000)]
        os.close(descriptor)
    finally:
        process.kill()
        process.communicate(timeout=30)
    assert numbers[0] > 0
    assert numbers == sorted(numbers)


@pytest.mark.timeout(60)
def test_a_stopped_or_dead_writer_can_still_be_read(tmp_path: Path) -> None:
    writer = PulseWriter(tmp_path, rank=3, attempt=1)
    writer.beat(12, "backward")
    pulse = read_pulse(tmp_path, 3)
    assert pulse is not None
    assert (pulse.step, pulse.phase, pulse.pid) == (12, "backward", os.getpid())
    assert abs(pulse.since - time.time()) < 600
    writer.close()
    process = start_writer(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    sequence = int.from_bytes((tmp_path / RECORD).read_bytes()[SEQUENCE_AT : SEQUENCE_AT + 8], "little")
    dead = read_pulse(tmp_path, 3)
    if sequence % 2 == 0:
        assert dead is not None
        assert dead.pid == process.pid
    else:
        assert dead is None


def test_a_new_writer_says_start(tmp_path: Path) -> None:
    PulseWriter(tmp_path, rank=3, attempt=4)
    pulse = read_pulse(tmp_path, 3)
    assert pulse is not None
    assert (pulse.step, pulse.phase, pulse.attempt, pulse.collectives_enqueued) == (0, "start", 4, 0)


def test_no_record_is_none(tmp_path: Path) -> None:
    assert read_pulse(tmp_path, 3) is None
    assert read_pulse(tmp_path / "gone", 3) is None


@pytest.mark.parametrize(
    ("offset", "content"),
    [(0, b"\0\0\0\0"), (4, struct.pack("<I", 99)), (SEQUENCE_AT, struct.pack("<q", 7))],
    ids=["magic", "version", "a write that never ended"],
)
def test_a_record_that_is_not_whole_or_not_ours_is_none(tmp_path: Path, offset: int, content: bytes) -> None:
    PulseWriter(tmp_path, rank=3, attempt=1).beat(5, "data")
    assert read_pulse(tmp_path, 3) is not None
    with open(tmp_path / RECORD, "r+b") as file:
        file.seek(offset)
        file.write(content)
    assert read_pulse(tmp_path, 3) is None


def test_a_file_that_is_too_short_is_none(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_bytes(b"ECAP")
    assert read_pulse(tmp_path, 3) is None


def test_a_phase_of_a_later_version_is_unknown(tmp_path: Path) -> None:
    PulseWriter(tmp_path, rank=3, attempt=1).beat(5, "data")
    with open(tmp_path / RECORD, "r+b") as file:
        file.seek(SEQUENCE_AT + 16)
        file.write(struct.pack("<i", len(PHASES)))
    pulse = read_pulse(tmp_path, 3)
    assert pulse is not None
    assert (pulse.step, pulse.phase) == (5, "unknown")


def test_a_record_that_changed_while_it_was_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = PulseWriter(tmp_path, rank=3, attempt=1)
    writer.beat(5, "data")
    read = os.pread
    readings = []

    def pread(descriptor: int, length: int, offset: int) -> bytes:
        before = read(descriptor, length, offset)
        readings.append(before)
        if len(readings) > 1:
            return before
        writer.beat(6, "backward")
        return before[:40] + read(descriptor, length, offset)[40:]

    monkeypatch.setattr(os, "pread", pread)
    pulse = read_pulse(tmp_path, 3)
    assert pulse is not None
    assert (pulse.step, pulse.phase) == (6, "backward")


def test_the_record_is_preallocated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hole would be filled at the first write: on a full file system that is a SIGBUS, and this an error."""

    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        PulseWriter(tmp_path, rank=3, attempt=1)


def test_only_our_own_directories_are_removed(tmp_path: Path) -> None:
    directory = create_pulse_directory("0123456789ab", os.getpid())
    PulseWriter(directory, rank=0, attempt=1)
    remove_pulse_directory(directory)
    assert not directory.exists()
    remove_pulse_directory(directory)
    remove_pulse_directory(tmp_path)
    assert tmp_path.exists()


def test_all_pulses_of_a_machine_are_found() -> None:
    mine = create_pulse_directory(f"found{os.getpid()}", 4)
    try:
        assert mine in find_pulse_directories()
        assert read_pulses(mine) == []
        for rank in (0, 11):
            PulseWriter(mine, rank, 4).close()
        (mine / "rank_x").touch()
        (mine / "rank_00005").write_bytes(b"torn")
        assert [(pulse.rank, pulse.pid, pulse.attempt) for pulse in read_pulses(mine)] == [
            (0, os.getpid(), 4),
            (11, os.getpid(), 4),
        ]
    finally:
        remove_pulse_directory(mine)
    assert mine not in find_pulse_directories()


def test_time_in_each_phase_and_waits_add_up(tmp_path: Path) -> None:
    writer = PulseWriter(tmp_path, rank=0, attempt=1)
    for step in (1, 2):
        writer.beat(step, "data")
        time.sleep(0.02)
        writer.beat(step, "backward")
        writer.wait(1.5)
    writer.beat(3, "data")
    pulse = read_pulse(tmp_path, 0)
    assert pulse is not None
    assert (pulse.waits, pulse.waited_ms) == (2, 3.0)
    assert set(pulse.spent_s) == {"start", "data", "backward"}
    assert pulse.spent_s["data"] >= 0.04


@pytest.mark.parametrize("num", [0, 1, 63, 64, 65, 200])
def test_the_last_waits_are_remembered_in_their_order(tmp_path: Path, num: int) -> None:
    writer = PulseWriter(tmp_path, rank=0, attempt=1)
    for number in range(num):
        writer.wait(float(number))
    pulse = read_pulse(tmp_path, 0)
    assert pulse is not None
    assert list(pulse.recent_ms) == [float(number) for number in range(max(0, num - 64), num)]
    assert list(pulse.list_waits(max(0, num - 2), max(0, num - 1))) == [float(num - 2)] * (num > 1)
    writer.close()


@pytest.mark.parametrize("steps", [2, 70])
def test_a_rank_tells_how_long_it_was_idle_by_itself(tmp_path: Path, steps: int) -> None:
    """Sleeping in data is idle; working in forward, and waiting for others in backward, is not."""
    writer = PulseWriter(tmp_path, rank=0, attempt=1)
    writer.tell_own()
    for step in range(1, steps + 1):
        writer.beat(step, "data")
        time.sleep(0.004)
        writer.beat(step, "forward")
        began = time.thread_time()
        while time.thread_time() - began < 0.002:
            pass
        writer.beat(step, "backward")
        slept = time.perf_counter()
        time.sleep(0.003)
        slept = time.perf_counter() - slept
        writer.beat(step, "optimizer")
        writer.beat(step + 1, "data")
        writer.wait(1e3 * slept)
    pulse = read_pulse(tmp_path, 0)
    assert pulse is not None
    owns = pulse.list_own(max(0, steps - 64), steps)
    assert len(pulse.recent_own_ms) == 4 * len(owns)
    assert min(own[0] for own in owns) > 3.5
    for phase in (1, 2):
        assert sorted(own[phase] for own in owns)[len(owns) // 2] < 1.0
    assert all(own[-1] >= 0 for own in owns)
    writer.close()


def test_a_rank_that_tells_nothing_of_its_own_says_so(tmp_path: Path) -> None:
    writer = PulseWriter(tmp_path, rank=0, attempt=1)
    writer.beat(1, "data")
    writer.wait(1.0)
    pulse = read_pulse(tmp_path, 0)
    assert pulse is not None
    assert (list(pulse.recent_ms), list(pulse.recent_own_ms)) == ([1.0], [])
    record = json.loads(json.dumps(pulse.to_record()))
    assert (record["rank"], record["phase"], record["recent_ms"]) == (0, "data", [1.0])
    writer.close()


def test_a_pulse_that_came_from_another_host_reads_like_one_from_here(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    assert raw_pulse(there, 3) == b"", "it has none yet"
    writer = PulseWriter(there, 3, 2)
    reader = None
    for step in (1, 2, 3):
        writer.beat(step, "forward")
        writer.enqueue()
        writer.wait(1.5 * step)
        assert store_remote_pulse(here, 3, raw_pulse(there, 3))
        reader = reader or PulseReader(remote_pulses(here), 3)
        kept, own = reader.read(), read_pulse(there, 3)
        assert kept is not None
        assert own is not None
        assert kept.to_record() == own.to_record()
    assert reader is not None
    before = reader.stored
    time.sleep(0.02)
    store_remote_pulse(here, 3, raw_pulse(there, 3))
    assert reader.read() is kept, "the same again is no movement"
    assert reader.stored != before, "and tells all the same that its host can be heard"
    assert read_pulses(here) == [], "it is no rank of this host"
    reader.close()
    writer.close()


def test_what_is_no_pulse_of_that_rank_is_not_kept_nor_what_there_is_no_room_for(tmp_path: Path, monkeypatch) -> None:
    writer = PulseWriter(tmp_path, 3, 2)
    writer.beat(1, "forward")
    data = raw_pulse(tmp_path, 3)
    odd = data[:SEQUENCE_AT] + b"\1" + data[SEQUENCE_AT + 1 :]
    for other in (b"", b"x" * len(data), data[:-1], data + b"x", odd):
        assert not store_remote_pulse(tmp_path, 3, other)
    assert not store_remote_pulse(tmp_path, 4, data)
    assert not remote_pulses(tmp_path).exists()
    assert store_remote_pulse(tmp_path, 3, data)
    writer.beat(2, "data")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert not store_remote_pulse(tmp_path, 3, raw_pulse(tmp_path, 3))
    kept = read_pulse(remote_pulses(tmp_path), 3)
    assert kept is not None
    assert kept.step == 1
    writer.close()


@pytest.mark.timeout(60)
def test_pulses_that_are_sent_on_at_full_speed_are_never_torn(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    sending = f"""
from pathlib import Path
from paceline.telemetry.pulse import PHASES, PulseWriter, raw_pulse, store_remote_pulse
writer, step = PulseWriter(Path({str(there)!r}), 3, 2), 0
print("ready", flush=True)
while True:
    step += 1
    writer.enqueued, writer.completed = 3 * step, 2 * step
    writer.beat(step, PHASES[step % len(PHASES)])
    store_remote_pulse(Path({str(here)!r}), 3, raw_pulse(Path({str(there)!r}), 3))
"""
    process = subprocess.Popen([sys.executable, "-c", sending], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        seen = set()
        deadline = time.monotonic() + 30
        while len(seen) < 500:
            assert time.monotonic() < deadline, len(seen)
            pulse = read_pulse(remote_pulses(here), 3)
            if pulse is not None:
                assert pulse.phase == PHASES[pulse.step % len(PHASES)]
                assert (pulse.collectives_enqueued, pulse.collectives_completed) == (3 * pulse.step, 2 * pulse.step)
                seen.add(pulse.step)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
