"""`paceline diagnose` as a person and as a script read it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.cli.main import run_command
from paceline.telemetry.pulse import PulseWriter, create_pulse_directory, remove_pulse_directory
from paceline.telemetry.run_file import AttemptHost
from tests.diagnose.directories import failure, write_run

HERE = Path(__file__).parents[2]
RANK = """
import os, sys, time
from pathlib import Path
from paceline.telemetry.pulse import PulseWriter
pulse = PulseWriter(Path(sys.argv[1]), int(sys.argv[2]), 1)
pulse.beat(7, sys.argv[3])
print("ready", flush=True)
time.sleep(60)
"""


def test_a_failed_run_in_words_and_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 158.00 MiB.\n"
    events = [failure("DesyncError", "parameters are no longer identical on all ranks at step 40: rank 1 differs")]
    write_run(tmp_path, "failed", "desync", events=events, logs={"rank_00001.log": log})
    assert run_command(["diagnose", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "failed (desync), attempt 1, 2 ranks" in text
    assert text.index("1. out_of_memory (critical, rank 1)") < text.index("2. desync (critical, rank 1)")
    assert "seen by events: rank 0 said: DesyncError" in text
    assert "do: do this" in text
    assert run_command(["diagnose", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [finding["kind"] for finding in told["findings"]] == ["out_of_memory", "desync"]
    assert (told["state"], told["is_owned"], told["stacks"]) == ("failed", None, None)


def test_a_healthy_run_and_an_abandoned_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, "finished", "length")
    assert run_command(["diagnose", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "nothing found wrong, in run.json alone" in text
    gaps = "there is nothing in events.jsonl; there is nothing in metrics.csv; heartbeats are there of 0 of 2 ranks"
    assert f"missing or damaged: {gaps}\n" in text
    layout = write_run(tmp_path, "running")
    layout.owner_lock.touch()
    assert run_command(["diagnose", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "but nobody runs it" in text
    assert f"--out {tmp_path}" in text


def test_what_was_read_is_named_and_what_was_not_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"attempt": 1, "step": 10, "loss": 1.0, "step_ms": 5.0}
    beats = {0: [{"step": 10, "phase": "data"}]}
    events = [("note", {"what": "x"})]
    layout = write_run(tmp_path, "failed", "x", world_size=1, metrics=[row], events=events, beats=beats)
    layout.log(0).write_text("all is well\n")
    assert run_command(["diagnose", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "attempt 1, 1 rank\n" in text
    assert "nothing found wrong, in its events, its metrics, its heartbeats and its logs\n" in text
    assert "missing or damaged" not in text
    layout.events.write_text(layout.events.read_text() + '{"kind": "torn')
    with open(layout.heartbeat(0), "ab") as beat:
        beat.write(b'{"v":1,"time":17\n\xff\x00\n')
    layout.metrics.unlink()
    layout.log(0).unlink()
    assert run_command(["diagnose", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["read"] == ["its events", "its heartbeats"]
    gaps = [
        "events.jsonl: 1 line of it is damaged and left out",
        "there is no metrics.csv",
        "heartbeat/rank_00000.jsonl: 2 lines of it are damaged and left out",
        "there is nothing in logs/",
    ]
    assert told["gaps"] == gaps


def test_a_copy_of_a_run_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout = write_run(tmp_path)
    layout.owner_lock.touch()
    layout.environment.write_text('{"v": 1, "host": "another-host"}')
    assert run_command(["diagnose", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "nobody runs" not in text
    assert "start it again" not in text
    assert "do: ask on another-host" in text


def test_of_several_hosts_each_rank_is_named_with_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = [AttemptHost(0, "a", "10.0.0.1", 0, 1), AttemptHost(1, "b", "10.0.0.2", 1, 1)]
    log = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 158.00 MiB.\n"
    events = [failure("DesyncError", "parameters are no longer identical on all ranks at step 40: rank 1 differs")]
    write_run(tmp_path, "failed", "x", events=events, logs={"rank_00001.log": log}, hosts=hosts)
    assert run_command(["diagnose", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "attempt 1, 2 ranks (rank 0 on a; rank 1 on b)\n" in text
    assert "rank 1 on b" in text.partition("1. out_of_memory")[2]


@pytest.mark.parametrize("where", ["elsewhere", "at its second host"])
def test_from_another_host_than_its_owners_nobody_is_dead_and_nothing_abandoned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    pulses = create_pulse_directory("d1a9" + os.urandom(4).hex(), 1)
    here = socket.gethostname() if where != "elsewhere" else "b"
    hosts = [AttemptHost(0, "a", "10.0.0.1", 0, 1), AttemptHost(1, here, "10.0.0.2", 1, 1)]
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    words = [sys.executable, "-c", RANK, str(pulses), "1", "backward"]
    rank = subprocess.Popen(words, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(HERE)})
    try:
        assert rank.stdout is not None
        assert rank.stdout.readline() == b"ready\n"
        writer = PulseWriter(pulses, 0, 1)  # the other host's rank, and its pid is nobody's here
        writer.beat(7, "backward")
        writer.close()
        held = pulses / "rank_00000"
        held.write_bytes(
            held.read_bytes().replace(os.getpid().to_bytes(4, "little"), int(gone.stdout).to_bytes(4, "little"), 1)
        )
        layout = write_run(tmp_path, "running", pulses=str(pulses), hosts=hosts)
        layout.owner_lock.touch()  # held on another host, where that cannot be seen from here
        assert run_command(["diagnose", str(tmp_path)]) == 0
        text = capsys.readouterr().out
    finally:
        rank.kill()
        rank.communicate()
        remove_pulse_directory(pulses)
    assert "dead" not in text
    assert "nobody runs" not in text
    assert "has gone" not in text
    assert "do: ask on a: paceline diagnose" in text


def test_bad_input_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["diagnose", str(tmp_path)]) == 2
    assert "not a run directory" in capsys.readouterr().err
    write_run(tmp_path, "finished", "length")
    assert run_command(["diagnose", str(tmp_path), "--stacks"]) == 2
    assert "no process of this run is on this host" in capsys.readouterr().err


def test_a_living_run_is_looked_at_and_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pulses = create_pulse_directory("d1a9" + os.urandom(4).hex(), 1)
    environment = os.environ | {"PYTHONPATH": str(HERE), "PACELINE_PULSES": f"{pulses}/"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(pulses), str(rank), phase], stdout=subprocess.PIPE, env=environment
        )
        for rank, phase in enumerate(("backward", "data"))
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == b"ready\n"
        write_run(tmp_path, "running", pulses=str(pulses))
        before = sorted(path.name for path in tmp_path.rglob("*"))
        assert run_command(["diagnose", str(tmp_path), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["findings"] == []  # a few seconds in a phase without history are nothing
        os.kill(ranks[1].pid, signal.SIGSTOP)
        assert run_command(["diagnose", str(tmp_path), "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)["findings"]
        assert (found["kind"], found["rank"], found["phase"], found["step"]) == ("stopped", 1, "data", 7)
        assert sorted(path.name for path in tmp_path.rglob("*")) == before
        assert all(rank.poll() is None for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
        remove_pulse_directory(pulses)
