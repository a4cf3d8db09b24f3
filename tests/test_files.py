"""Small files survive kills, full disks and several writers at once."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.errors import StorageError, UsageError
from paceline.files import (
    LineWriter,
    Lock,
    overwrite_text,
    read_json,
    read_last_records,
    read_records,
    storage_error,
    storage_errors,
    sync_file_system,
    write_bytes,
    write_json,
    write_text,
)

FULL_DEVICE = Path("/dev/full")
needs_full_device = pytest.mark.skipif(not FULL_DEVICE.exists(), reason="there is no /dev/full here")


def start_python(code: str, *arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=30)


REPLACING = """
import sys
from pathlib import Path
from paceline.files import write_text
path, number = Path(sys.argv[1]), 0
while True:
    number += 1
    write_text(path, f"{number:06d}" * 20_000)
    print(number, flush=True)
"""


class TestReplacement:
    def test_the_new_content_is_there_and_nothing_else(self, tmp_path: Path) -> None:
        write_json(tmp_path / "a.json", {"x": 1})
        write_json(tmp_path / "a.json", {"x": 2})
        assert read_json(tmp_path / "a.json") == {"x": 2}
        assert [p.name for p in tmp_path.iterdir()] == ["a.json"]

    def test_a_kill_at_any_moment_leaves_whole_content(self, tmp_path: Path) -> None:
        path = tmp_path / "a.txt"
        for attempt in range(8):
            process = start_python(REPLACING, path)
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.0007 * attempt)  # at another point of a write each time
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=30)
            text = path.read_text()
            assert len(text) == 6 * 20_000
            assert len({text[start : start + 6] for start in range(0, len(text), 6)}) == 1

    def test_a_failed_write_leaves_the_old_content_and_no_rubbish(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_text(tmp_path / "a.txt", "old")

        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            write_text(tmp_path / "a.txt", "new")
        assert (tmp_path / "a.txt").read_text() == "old"
        assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


WRITING_LINES = """
import sys
from pathlib import Path
from paceline.files import LineWriter
lines = LineWriter(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    lines.write_record({"writer": int(sys.argv[2]), "number": number, "filling": "x" * (number * 37 % 5000)})
"""


class TestLines:
    def test_records_come_back(self, tmp_path: Path) -> None:
        lines = LineWriter(tmp_path / "deep" / "a.jsonl")
        assert lines.is_empty
        lines.write_record({"loss": 0.1 + 0.2, "text": "größer\nzweite Zeile"})
        lines.close()
        lines.close()
        assert read_records(tmp_path / "deep" / "a.jsonl") == [{"loss": 0.1 + 0.2, "text": "größer\nzweite Zeile"}]

    def test_a_missing_file_has_no_records(self, tmp_path: Path) -> None:
        assert read_records(tmp_path / "nothing.jsonl") == []

    def test_a_torn_tail_is_passed_over(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.write_bytes(b'{"a":1}\n{"a":2}\n{"a":3')
        assert read_records(path) == [{"a": 1}, {"a": 2}]

    def test_damage_in_the_middle_costs_that_line_only(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.write_bytes(b'{"a":1}\n\xff\x00\xfe\n\n17\n{"a":2}\n')
        assert read_records(path) == [{"a": 1}, {"a": 2}]

    @pytest.mark.parametrize("torn", [b'{"a":2', b'{"a":"\xc3', b"x"])
    def test_writing_goes_on_after_a_torn_tail(self, tmp_path: Path, torn: bytes) -> None:
        path = tmp_path / "a.jsonl"
        path.write_bytes(b'{"a":1}\n' + torn)
        lines = LineWriter(path)
        assert not lines.is_empty
        lines.write_record({"a": 3})
        lines.close()
        assert read_records(path) == [{"a": 1}, {"a": 3}]

    def test_a_whole_tail_gets_no_empty_line(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        for number in range(3):
            lines = LineWriter(path)
            lines.write_record({"a": number})
            lines.close()
        assert path.read_text() == '{"a":0}\n{"a":1}\n{"a":2}\n'

    @pytest.mark.timeout(60)
    def test_several_processes_write_whole_lines(self, tmp_path: Path) -> None:
        path, count = tmp_path / "a.jsonl", 300
        writers = [start_python(WRITING_LINES, path, writer, count) for writer in range(3)]
        for process in writers:
            assert process.stdout is not None
            process.stdout.readline()
        for process in writers:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        assert [process.wait(timeout=50) for process in writers] == [0, 0, 0]
        for process in writers:
            process.communicate()
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for writer in range(3):
            assert [r["number"] for r in records if r["writer"] == writer] == list(range(count))

    @needs_full_device
    def test_a_full_disk_is_an_error_at_the_write(self) -> None:
        lines = LineWriter(FULL_DEVICE)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            lines.write("a")
        lines.close()

    def test_a_line_that_fits_in_part_is_a_full_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        lines = LineWriter(tmp_path / "a.jsonl")
        lines.write("whole")
        write = os.write
        monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:-2]))
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            lines.write("abc")
        lines.close()
        assert (tmp_path / "a.jsonl").read_text() == "whole\n", "the part that did fit is taken back"

    def test_numbers_that_json_does_not_have_become_null(self, tmp_path: Path) -> None:
        lines = LineWriter(tmp_path / "a.jsonl")
        lines.write_record({"loss": float("nan"), "phase_ms": {"data": float("inf")}, "ids": [1, 2.5]})
        lines.close()
        assert (tmp_path / "a.jsonl").read_text() == '{"loss":null,"phase_ms":{"data":null},"ids":[1,2.5]}\n'


class TestStorageErrors:
    @pytest.mark.parametrize(
        ("number", "kind", "exit_code", "says"),
        [
            (errno.ENOSPC, StorageError, 4, "the disk is full"),
            (errno.EDQUOT, StorageError, 4, "the disk is full"),
            (errno.EROFS, UsageError, 2, "cannot write there"),
            (errno.EACCES, UsageError, 2, "cannot write there"),
            (errno.ENOTDIR, UsageError, 2, "a file stands where a directory is needed"),
            (errno.EIO, StorageError, 4, "cannot write"),
        ],
    )
    def test_each_kind_has_its_exit_code_and_a_remedy(
        self, number: int, kind: type[Exception], exit_code: int, says: str
    ) -> None:
        error = storage_error(OSError(number, os.strerror(number), "runs/a/x"), "runs/a")
        assert type(error) is kind
        assert error.exit_code == exit_code
        problem = error.problems[0]
        assert says in problem.what
        assert problem.where == "runs/a/x"
        assert "--out DIR" in problem.do

    def test_without_a_file_name_the_directory_is_named(self) -> None:
        assert storage_error(OSError(errno.ENOSPC, "full"), "runs/a").problems[0].where == "runs/a"

    @needs_full_device
    def test_a_full_disk_inside_the_block(self) -> None:
        with pytest.raises(StorageError, match="the disk is full"), storage_errors("runs/a"):
            LineWriter(FULL_DEVICE).write("a")

    def test_a_file_in_place_of_a_directory(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("")
        with pytest.raises(UsageError, match="a file stands"), storage_errors(tmp_path):
            (tmp_path / "a").mkdir()

    def test_other_errors_pass_through(self) -> None:
        with pytest.raises(ZeroDivisionError), storage_errors("runs/a"):
            _ = 1 / 0


HOLDING = """
import sys
from pathlib import Path
from paceline.files import Lock
lock = Lock(Path(sys.argv[1]))
print(lock.acquire(shared=sys.argv[2] == "shared"), flush=True)
sys.stdin.readline()
"""


@pytest.mark.timeout(60)
class TestLock:
    @pytest.mark.parametrize(
        ("held", "wanted", "granted"),
        [
            ("shared", "shared", True),
            ("shared", "exclusive", False),
            ("exclusive", "shared", False),
            ("exclusive", "exclusive", False),
        ],
    )
    def test_across_processes(self, tmp_path: Path, held: str, wanted: str, granted: bool) -> None:
        path = tmp_path / "lock"
        holder = start_python(HOLDING, path, held)
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "True\n"
            lock = Lock(path)
            assert lock.acquire(shared=wanted == "shared") is granted
            lock.release()
        finally:
            end(holder)

    def test_a_killed_holder_gives_it_back(self, tmp_path: Path) -> None:
        holder = start_python(HOLDING, tmp_path / "lock", "exclusive")
        assert holder.stdout is not None
        holder.stdout.readline()
        end(holder)
        assert Lock(tmp_path / "lock").acquire()

    def test_what_was_forked_meanwhile_does_not_keep_it_after_a_release(self, tmp_path: Path) -> None:
        lock = Lock(tmp_path / "lock")
        assert lock.acquire()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)  # until its parent lets go
            os._exit(0)
        try:
            lock.release()
            assert Lock(tmp_path / "lock").acquire()
        finally:
            os.close(writer)
            os.close(reader)
            os.waitpid(child, 0)

    def test_a_child_does_not_keep_it(self, tmp_path: Path) -> None:
        lock = Lock(tmp_path / "lock")
        assert lock.acquire()
        child = subprocess.Popen(["sleep", "30"], close_fds=False)
        try:
            lock.release()
            assert Lock(tmp_path / "lock").acquire()
        finally:
            child.kill()
            child.wait(timeout=30)


def test_the_end_of_a_long_file_of_records(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert read_last_records(path) == []
    path.write_text("".join(f'{{"n":{number}}}\n' for number in range(1000)) + '{"n":')
    assert [record["n"] for record in read_last_records(path, 50)] == [996, 997, 998, 999]
    assert len(read_last_records(path)) == 1000


def test_a_writer_killed_in_a_line_leaves_no_lock_to_what_it_forked(tmp_path: Path) -> None:
    """The forked process lives on with the same descriptors; others must be able to write."""
    code = """
import os, signal, sys
from pathlib import Path
from paceline.files import LineWriter
writer, write = LineWriter(Path(sys.argv[1])), os.write
def fork_and_die(*arguments):
    if pid := os.fork():
        write(1, str(pid).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(1)
    signal.pause()
os.write = fork_and_die
writer.write("never")
"""
    path = tmp_path / "lines"
    done = subprocess.run([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, timeout=60, check=False)
    try:
        assert done.returncode == -signal.SIGKILL
        other = f"from pathlib import Path; from paceline.files import LineWriter; LineWriter(Path({str(path)!r})).write('x')"
        subprocess.run([sys.executable, "-c", other], timeout=30, check=True)
        assert path.read_text() == "x\n"
    finally:
        os.kill(int(done.stdout), signal.SIGKILL)


@pytest.mark.parametrize("is_synced", [True, False])
def test_bytes_replace_a_file_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_synced: bool
) -> None:
    synced = list[int]()
    monkeypatch.setattr(os, "fsync", synced.append)
    write_bytes(tmp_path / "a", b"old", is_synced=is_synced)
    assert len(synced) == is_synced
    monkeypatch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        write_bytes(tmp_path / "a", b"new", is_synced=is_synced)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"old")]


def test_a_file_system_is_synced_by_any_path_in_it(tmp_path: Path) -> None:
    sync_file_system(tmp_path)
    with pytest.raises(FileNotFoundError):
        sync_file_system(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["shorter", "longer than what it held"])
def test_what_is_overwritten_has_the_new_content_or_the_old(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record"
    write_text(path, "what it held", room=10_000)
    assert path.read_text() == "what it held"
    overwrite_text(path, text)
    assert path.read_text() == text

    def full(descriptor: int, begin: int, size: int) -> None:
        os.ftruncate(descriptor, size + 5)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        overwrite_text(path, "x" * 100)
    assert path.read_text() == text
    assert os.listdir(tmp_path) == ["record"]
