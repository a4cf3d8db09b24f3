"""A script that has never heard of us, whose ranks stop or spin: named all the same, by what can be seen from outside."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from paceline.files import Lock, read_json
from paceline.supervise.py_spy import find_program
from paceline.telemetry.reader import read_run
from tests.integration.conftest import Command, assert_gone

SCRIPT = """
import os, socket, subprocess, sys, time
if "RANK" not in os.environ:                      # a launcher of its own
    pair = socket.socketpair()
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(pair[rank].fileno())],
            env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "2"},
            pass_fds=[pair[rank].fileno()],
        )
        for rank in (0, 1)
    ]
    sys.exit(max(abs(rank.wait()) for rank in ranks))
rank, peer = int(os.environ["RANK"]), socket.socket(fileno=int(sys.argv[1]))
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])      # a loader, say
for step in range(1, 100000):
    time.sleep(0.02)
    while os.path.exists(f"spin{rank}"):
        pass
    peer.send(b"x")                               # a barrier
    peer.recv(1)
    if rank == 0:
        print(f"iter {step} | loss {1 / step:.4f}")
    if rank == 0 and step == 60:                  # a long evaluation
        until = time.time() + 3
        while time.time() < until:
            pass
        print("held-out error 0.5")
    elif step == 60:
        until = time.time() + 3
        while time.time() < until:
            pass
"""

DDP = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, 1000000):
    loss = model(torch.randn(32, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0 and dist.get_rank() == 0:
        print(f"iter {step} | loss {loss.item():.4f}")
"""

CONFIG = """
recipe: command
command:
  argv: [{python}, {words}{script}]
  metrics: {{step: 'iter (\\d+)', loss: 'loss ([\\d.]+)'}}
supervise: {{policy: halt, stall_floor_s: 1.5, evaluate_limit_s: 6}}
"""


@pytest.fixture
def start(paceline, tmp_path: Path):
    def start(script: str = SCRIPT, words: str = "") -> Command:
        (tmp_path / "script.py").write_text(script)
        config = tmp_path / "config.yaml"
        config.write_text(CONFIG.format(python=sys.executable, words=words, script=tmp_path / "script.py"))
        return paceline("train", str(config), "--nproc", "2", "--out", str(tmp_path / "run"), cwd=tmp_path)

    return start


def ranks_of(command: Command) -> dict[int, psutil.Process]:
    found = {}
    for process in command.descendants():
        rank = process.environ().get("RANK")
        if rank is not None and any(word.endswith("script.py") for word in process.cmdline()):
            found[int(rank)] = process
    return found


def wait_for_line(root: Path, step: int) -> None:
    deadline = time.monotonic() + 60
    log = root / "logs" / "rank_00000.log"
    while not log.exists() or f"iter {step} " not in log.read_text():
        assert time.monotonic() < deadline, f"step {step} was not told"
        time.sleep(0.05)


@pytest.mark.timeout(120)
def test_a_rank_of_a_foreign_script_is_named(start, tmp_path: Path) -> None:
    command, root = start(), tmp_path / "run"
    wait_for_line(root, 80)  # past its silent evaluation, which is no stall: all its ranks compute
    ranks, members = ranks_of(command), command.descendants()
    os.kill(ranks[1].pid, signal.SIGSTOP)
    code, out, err = command.finish()
    assert code == 5, (out, err)
    assert "HaltedError: rank 1 of the script" in err
    assert_gone(members)
    (report,) = [read_json(path) for path in root.glob("incidents/*/report.json")]
    assert (report["finding"]["kind"], report["finding"]["rank"], report["action"]) == ("stopped", 1, "killed")
    assert report["finding"]["step"] >= 80
    assert any("from outside only" in witness["said"] for witness in report["finding"]["witnesses"])
    if find_program() is not None:
        assert report["stacks"]["missing"] == {}
        assert "script.py" in (root / "incidents" / "0001-stopped-rank1" / "stacks" / "rank_00000.txt").read_text()
    assert read_run(root).run.attempts[-1].exit_code == 5


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_rank_of_a_foreign_script_that_computes_for_ever_is_named(start, tmp_path: Path) -> None:
    command, root = start(), tmp_path / "run"
    wait_for_line(root, 80)
    lock = Lock(read_run(root).layout.supervisor_lock)
    deadline = time.monotonic() + 60
    while lock.acquire():
        lock.release()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(3)  # somebody looks by now, and learns its pace
    (tmp_path / "spin0").touch()
    code, out, err = command.finish()
    assert code == 5, (out, err)
    (report,) = [read_json(path) for path in root.glob("incidents/*/report.json")]
    assert (report["finding"]["kind"], report["finding"]["rank"]) == ("stall", 0)
    assert "computes alone" in report["finding"]["what"]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_stopped_rank_of_plain_torchrun_is_named(start, tmp_path: Path) -> None:
    """A script of somebody's own with DDP, under the torchrun that it is always started with."""
    torchrun = "-m, torch.distributed.run, --standalone, --nproc-per-node, '2', "
    command, root = start(DDP, torchrun), tmp_path / "run"
    wait_for_line(root, 200)
    ranks, members = ranks_of(command), command.descendants()
    os.kill(ranks[1].pid, signal.SIGSTOP)
    code, out, err = command.finish()
    assert code == 5, (out, err)
    assert "HaltedError: rank 1 of the script" in err
    assert_gone(members)
    (report,) = [read_json(path) for path in root.glob("incidents/*/report.json")]
    assert (report["finding"]["kind"], report["finding"]["rank"], report["action"]) == ("stopped", 1, "killed")
    assert [rank["pid"] for rank in report["ranks"]] == [ranks[0].pid, ranks[1].pid]
    if find_program() is not None:
        texts = [path.read_text() for path in sorted(root.glob("incidents/*/stacks/*.txt"))]
        assert len(texts) == 2
        assert all("script.py" in text for text in texts)
