"""Several ranks of a foreign loop: real processes without torch, kept in step by a pair of sockets as a collective would."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paceline.cli.main import run_command
from paceline.telemetry.pulse import read_pulse
from paceline.telemetry.reader import read_run
from paceline.telemetry.run_file import load_run_file

pytestmark = pytest.mark.timeout(60)
ROOT = Path(__file__).parents[3]
LOOP = """
import os, socket, sys, time
from paceline import start_run
rank, peer = int(os.environ["RANK"]), socket.socket(fileno=int(sys.argv[2]))
if rank == 1 and "late" in sys.argv:
    time.sleep(0.3)
run = start_run(sys.argv[1], {"a": 1}, log_every=5, heartbeat_s=0.05)
while not run.should_stop:
    peer.send(b"x")                  # what an all-reduce does: nobody ends a step before all have begun it
    if not peer.recv(1):
        sys.exit("the peer has gone")
    if rank == 0:
        time.sleep(0.002)            # rank 1 always ends a step first
    run.step(loss=float(rank), samples=3)
    if run.last_step == 20 and rank == 1 and "boom" in sys.argv:
        raise ValueError("boom")
    if run.last_step == 20 and "endless" in sys.argv:
        time.sleep(100)
print(run.last_step)
run.finish()
"""


@contextmanager
def two_ranks(out: Path, *words: str, port: int = 1) -> Iterator[list[subprocess.Popen[str]]]:
    ends = socket.socketpair()
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = []
    for rank, end in enumerate(ends):
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", LOOP, str(out), str(end.fileno()), *words],
                env=os.environ | common | {"RANK": str(rank), "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[end.fileno()],
                text=True,
            )
        )
    for end in ends:
        end.close()
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def wait_for(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_two_ranks_write_one_run_and_stop_at_one_step(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with two_ranks(tmp_path, "late") as ranks:
        wait_for(lambda: (tmp_path / "heartbeat" / "rank_00001.jsonl").exists())
        run = load_run_file(tmp_path)
        pulses = [read_pulse(Path(run.attempts[0].pulses), rank) for rank in range(2)]
        assert [pulse.pid for pulse in pulses] == [process.pid for process in ranks]
        assert run_command(["stop", str(tmp_path)]) == 0
        outputs = [process.communicate(timeout=20) for process in ranks]
    assert outputs[0] == outputs[1], "both stopped after the same step, and neither complained"
    last = int(outputs[0][0])
    assert "stopped at step" in capfd.readouterr().out
    found = read_run(tmp_path)
    attempt = found.run.attempts[0]
    assert (attempt.state, attempt.reason, attempt.step, attempt.world_size) == ("stopped", "stop_command", last, 2)
    assert last % 5 == 0
    assert found.metrics[-1]["samples"] == 6 * last
    assert {row["loss"] for row in found.metrics} == {0.0}, "only rank 0 writes the table"
    assert found.events_of("choice")[0]["effective"] == "those of rank 0 × 2"
    assert [found.beats(rank)[-1]["step"] for rank in range(2)] == [last, last]
    assert {event["source"] for event in found.events} == {"rank 0"}

    # A later launch is another attempt for both, and an old one of the same address is not mistaken for it.
    with two_ranks(tmp_path, "late") as ranks:
        wait_for(lambda: any(beat["attempt"] == 2 for beat in found.beats(1)))
        assert run_command(["stop", str(tmp_path)]) == 0
        for process in ranks:
            process.wait(timeout=20)
    assert {beat["attempt"] for beat in read_run(tmp_path).beats(1)} == {1, 2}


def test_a_rank_that_fails_is_named_before_the_launcher_ends_the_others(tmp_path: Path) -> None:
    with two_ranks(tmp_path, "boom", "endless") as ranks:
        _, errors = ranks[1].communicate(timeout=30)
        assert "ValueError: boom" in errors
        ranks[0].terminate()  # torchrun, a tenth of a second later
        ranks[0].wait(timeout=10)
    found = read_run(tmp_path)
    attempt = found.run.attempts[0]
    assert (attempt.state, attempt.reason, attempt.step) == ("failed", "rank 1: ValueError: boom", 20)
    (failure,) = found.events_of("failure")
    assert (failure["rank"], failure["source"], failure["secondary"]) == (1, "rank 1", False)


def test_a_rank_that_fails_for_want_of_its_peer_is_not_the_cause(tmp_path: Path) -> None:
    with two_ranks(tmp_path, "boom") as ranks:
        codes = [process.wait(timeout=30) for process in ranks]
    assert codes == [1, 1]
    found = read_run(tmp_path)
    assert found.run.reason == "rank 1: ValueError: boom"
    assert {(failure["rank"], failure["secondary"]) for failure in found.events_of("failure")} == {
        (0, True),
        (1, False),
    }
