"""Real ranks that hang, die and go on, watched from another process: who did it, everybody's stacks, and what was done about it.

Nothing here measures how fast anything is noticed: limits are generous, `paceline bench faults` measures.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from paceline.files import read_json
from paceline.supervise.py_spy import find_program
from paceline.telemetry.pulse import read_pulse
from paceline.telemetry.reader import Run, read_run
from paceline.telemetry.run_file import load_run_file
from tests.integration.conftest import HARD, WITHOUT_GPU, Started, assert_gone, assert_same_bits, start_in, tiny

STEPS = "train.max_steps=40"
THREE = (*(each for each in HARD if "evaluate.every" not in each), "evaluate.every_epochs=4", STEPS)


def incidents(root: Path) -> list[dict]:
    return [read_json(path) for path in sorted((root / "incidents").glob("*/report.json"))]


def wait_until(holds, what: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not come in {timeout_s} s"
        time.sleep(0.05)


def pulse_of(root: Path, rank: int):
    run = load_run_file(root)
    return read_pulse(Path(run.attempts[-1].pulses), rank) if run is not None and run.attempts else None


def wait_for_step(root: Path, rank: int, step: int) -> None:
    def has_come() -> bool:
        pulse = pulse_of(root, rank)
        return pulse is not None and pulse.step >= step

    wait_until(has_come, f"step {step} of rank {rank}")


@pytest.fixture(scope="module")
def reference(zygote, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same run without a fault."""
    started = start_in(zygote, tmp_path_factory.mktemp("undisturbed"), 3, *THREE)
    run = started.wait()
    assert started.codes == [0, 0, 0]
    return run


@pytest.mark.timeout(180)
def test_a_stopped_rank_is_named_halted_and_the_run_goes_on_bit_for_bit(start_ranks, paceline, reference: Run) -> None:
    """Under a launcher that is not ours, watched with --halt-on-stall."""
    started: Started = start_ranks(3, *THREE, "supervise.stall_floor_s=4", plant="sleep:seconds=0.1")
    wait_for_step(started.root, 0, 3)
    watch = paceline("watch", str(started.root), "--halt-on-stall")
    wait_until(lambda: (started.root / ".supervisor.lock").exists(), "a supervisor")
    second = paceline("watch", str(started.root), "--once", "--json")
    code, out, err = second.finish()
    assert (code, err) == (0, "")
    glance = json.loads(out)
    assert [rank["rank"] for rank in glance["ranks"]] == [0, 1, 2]
    assert glance["total_steps"] == 40
    assert all(rank["state"] in ("running", "sleeping") for rank in glance["ranks"])
    ranks = [psutil.Process(pid) for pid in started.pids]
    members = [child for rank in ranks for child in rank.children(recursive=True)]
    assert members, "they have loader processes"
    wait_for_step(started.root, 0, 6)
    os.kill(started.pids[1], signal.SIGSTOP)
    code, out, err = watch.finish()
    assert code == 5, (out, err)
    assert "HaltedError: rank 1 " in err
    assert "goes on from the newest checkpoint" in err
    assert "stopped: rank 1 " in out
    run = started.wait()
    assert started.codes == [-9, -9, -9]
    assert_gone([*ranks, *members])

    found = incidents(started.root)
    assert [(each["finding"]["kind"], each["finding"]["rank"]) for each in found] == [("stopped", 1)], found
    (report,) = found
    assert (report["policy"], report["action"], report["attempt"]) == ("halt", "killed", 1)
    assert report["noticed"] >= report["happened"]
    assert report["ended"] >= report["noticed"]
    states = {rank["rank"]: rank["state"] for rank in report["ranks"]}
    assert states[1] == "stopped"
    (folder,) = (started.root / "incidents").iterdir()
    assert folder.name == "0001-stopped-rank1"
    texts = {rank: (folder / "stacks" / f"rank_{rank:05d}.txt").read_text() for rank in range(3)}
    for rank in (0, 2):
        assert "most recent call first" in texts[rank]
        assert "trainer.py" in texts[rank]
    if find_program() is None:
        assert "stopped: it cannot answer" in texts[1]
        assert "py-spy is not installed" in texts[1]
    else:
        assert "Thread" in texts[1]
    assert {rank for cluster in report["stacks"]["clusters"] for rank in cluster["ranks"]} >= {0, 2}
    assert "rank 1" in (folder / "report.md").read_text().splitlines()[0]
    assert (folder / "beats.jsonl").read_text().count("\n") >= 3
    events = run.events_of("incident")
    assert [(event["source"], event["incident"], event["action"]) for event in events] == [
        ("supervisor", folder.name, "none"),
        ("supervisor", folder.name, "killed"),
    ]
    assert run.run.state == "failed"
    assert "halted by its supervisor: rank 1 " in run.run.reason

    again: Started = start_ranks(3, *THREE)
    run = again.wait()
    assert again.codes == [0, 0, 0], again.text()
    assert [attempt.state for attempt in run.run.attempts] == ["failed", "finished"]
    assert run.events_of("resume"), "it went on from a checkpoint"
    assert_same_bits(run, reference)


@pytest.mark.timeout(120)
@pytest.mark.slow
def test_a_rank_that_never_gets_its_data_is_named(start_ranks, paceline) -> None:
    """An endless loop in Python: the others wait for it in backward."""
    started: Started = start_ranks(2, "train.max_steps=2000", "supervise.stall_floor_s=2", plant="spin:rank=1,step=30")
    wait_for_step(started.root, 0, 2)
    watch = paceline("watch", str(started.root), "--halt-on-stall")
    code, out, err = watch.finish()
    assert code == 5, (out, err)
    started.wait()
    assert started.codes == [-9, -9]
    (report,) = incidents(started.root)
    finding = report["finding"]
    assert (finding["kind"], finding["rank"], finding["phase"], finding["step"]) == ("stall", 1, "data", 30)
    assert report["stacks"]["missing"] == {}
    odd = report["stacks"]["clusters"][0]
    assert (odd["is_odd"], odd["ranks"]) == (True, [1])
    assert "spin" in odd["frames"][0] or "spin" in odd["place"]


@pytest.mark.timeout(120)
def test_a_killed_rank_is_a_dead_one_and_long_pauses_are_nothing(start_ranks, paceline) -> None:
    started: Started = start_ranks(
        2,
        "train.max_steps=60",
        "evaluate.every_steps=20",
        "evaluate.block=16",
        "checkpoint.every_steps=15",
        "supervise.stall_floor_s=0.5",
        plant="pauses:seconds=0.8,kill_rank=1,kill_step=50",
    )
    wait_for_step(started.root, 0, 1)
    watch = paceline("watch", str(started.root))
    code, out, err = watch.finish()
    assert (code, err) == (0, ""), (out, err)
    run = started.wait()
    assert started.codes[1] == -9
    (report,) = incidents(started.root)
    assert (report["finding"]["kind"], report["finding"]["rank"]) == ("dead_rank", 1)
    assert report["ranks"][1]["exit_code"] in (-9, None)
    assert report["action"] == "none"
    assert len(run.events_of("evaluation")) >= 2, "long evaluations went by without an alarm"


TORCHRUN = (
    *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--rdzv-backend", "c10d"),
    *("--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"),
)
LOOP_OF_ONES_OWN = Path(__file__).parents[2] / "examples" / "plain_loop.py"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("whose", ["worker", "sdk"])
def test_under_the_users_own_torchrun(zygote, paceline, tmp_path: Path, reference: Run, whose: str) -> None:
    """Three ranks of our worker, or of a foreign loop with the SDK, one stopped: named, halted, and started again with the same command."""
    root, undisturbed = tmp_path / "run", tmp_path / "undisturbed"
    argv = ["-m", "paceline.worker", "sasrec", *tiny(*THREE), "--out", str(root)]
    if whose == "sdk":
        length = ["--steps", "900", "--save-every", "20"]
        argv = [str(LOOP_OF_ONES_OWN), *length, "--out", str(root)]
        zygote.start(3, [*length, "--out", str(undisturbed)], tmp_path, script=LOOP_OF_ONES_OWN)
        assert zygote.wait(60) == [0, 0, 0]
    command = [*TORCHRUN, *argv]
    environment = WITHOUT_GPU | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as torchrun:
        wait_for_step(root, 2, 201 if whose == "sdk" else 9)  # all have ended step 200 then, and rank 0 saves it
        stopped = pulse_of(root, 2).pid
        os.kill(stopped, signal.SIGSTOP)
        watch = paceline("watch", str(root), "--halt-on-stall")
        code, out, err = watch.finish()
        assert code == 5, (out, err)
        assert "HaltedError: rank 2 " in err
        assert torchrun.wait(60) != 0
    (report,) = incidents(root)
    assert (report["finding"]["kind"], report["finding"]["rank"], report["action"]) == ("stopped", 2, "killed")
    assert len(list(root.glob("incidents/0001-stopped-rank2/stacks/rank_0000?.txt"))) == 3
    assert set(report["stacks"]["missing"]) == ({"2"} if find_program() is None else set())
    assert load_run_file(root).state == "failed"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    run = read_run(root)
    assert [attempt.state for attempt in run.run.attempts] == ["failed", "finished"]
    if whose == "worker":
        assert_same_bits(run, reference)
        return
    resumed_at = min(row["step"] for row in run.metrics if row["attempt"] == 2)
    assert 200 <= resumed_at < 900, "from its own checkpoint, not from the beginning"
    assert_same_tensors(root.with_suffix(".pt"), undisturbed.with_suffix(".pt"))


def assert_same_tensors(one: Path, other: Path) -> None:
    """Weights and the optimizer's state of two of the loop's own checkpoints."""
    first, second = (torch.load(path, weights_only=True) for path in (one, other))
    pairs = [(first["model"][name], second["model"][name]) for name in second["model"]]
    states = [each["optimizer"]["state"] for each in (first, second)]
    pairs += [(states[0][index][name], states[1][index][name]) for index in states[1] for name in states[1][index]]
    assert len(pairs) == 4 + 3 * 4
    assert all(torch.equal(mine, yours) for mine, yours in pairs)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_whole_command_brings_a_stalled_run_back(paceline, tmp_path: Path, reference: Run) -> None:
    """`paceline train` with policy restart: a rank is stopped once, and the result is that of an undisturbed run."""
    root = tmp_path / "run"
    policy = ["supervise.policy=restart", "--max-restarts", "2", "--nproc", "3", "--out", str(root)]
    environment = WITHOUT_GPU | {"OMP_NUM_THREADS": "1"}
    command = paceline("train", "sasrec", *tiny(*THREE), *policy, env=environment)
    wait_for_step(root, 0, 9)
    os.kill(pulse_of(root, 0).pid, signal.SIGSTOP)
    code, out, err = command.finish(200)
    assert (code, err) == (0, ""), (out, err)
    assert "stopped: rank 0 " in out
    assert "restart 1 of 2: halted: rank 0" in out
    run = read_run(root)
    assert [attempt.state for attempt in run.run.attempts] == ["failed", "finished"]
    assert [report["action"] for report in incidents(root)] == ["restarted"]
    assert_same_bits(run, reference)


LOOP = """
import sys, time
from paceline import start_run

def hang():
    while True:
        time.sleep(0.1)

run = start_run(sys.argv[1], config={"lr": 0.1}, total_steps=100)
for step in range(1, 100):
    with run.phase("data"):
        time.sleep(0.02)
        if step == 60:
            hang()
    run.step(loss=1.0)
"""


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_a_loop_with_the_sdk_is_supervised_by_a_watcher(paceline, tmp_path: Path) -> None:
    root = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", LOOP, str(root)]) as loop:
        wait_for_step(root, 0, 5)
        watch = paceline("watch", str(root), "--halt-on-stall", "--json")
        code, out, err = watch.finish()
        assert code == 5, (out, err)
        assert loop.wait(20) == -9
    glances = [json.loads(line) for line in out.splitlines()]
    assert any(glance["findings"] for glance in glances)
    (report,) = incidents(root)
    assert (report["finding"]["kind"], report["finding"]["rank"], report["finding"]["phase"]) == ("stall", 0, "data")
    assert "hang" in (root / "incidents" / "0001-stall-rank0" / "stacks" / "rank_00000.txt").read_text()
    assert load_run_file(root).state == "failed"
    ended = paceline("watch", str(root))
    code, out, err = ended.finish()
    assert (code, err) == (0, "")
    assert out.startswith("not running: failed at step 60 (halted by its supervisor: ")
