from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.launch.command import Group, agent_command, claimed_arguments, free_arguments, shell_line

PRINTER = """
import json, os, sys
from pathlib import Path
names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NCCL_DEBUG", "GONE")
Path(os.environ["OUT"], os.environ["RANK"]).write_text(json.dumps([sys.argv[1:], {n: os.environ.get(n) for n in names}]))
"""


def test_the_port_is_never_fixed() -> None:
    command = agent_command(2, ["a"])
    assert command[command.index("--rdzv-endpoint") + 1] == "127.0.0.1:0"
    assert "--master-port" not in command
    assert command[-3:] == ["-m", "paceline.worker", "a"]


def test_one_of_several_hosts_knows_its_place_beforehand() -> None:
    command = agent_command(4, ["a"], rendezvous_id="x", group=Group(3, 2, "10.9.0.1", 4711))
    given = dict(itertools.pairwise(command))
    assert (given["--nnodes"], given["--node-rank"], given["--nproc-per-node"]) == ("3", "2", "4")
    assert (given["--rdzv-backend"], given["--master-addr"], given["--master-port"]) == ("static", "10.9.0.1", "4711")
    assert given["--max-restarts"] == "0", "what comes after a failure is decided above"
    assert "--rdzv-endpoint" not in command
    assert "[fd00::1]" in agent_command(1, [], group=Group(2, 0, "fd00::1", 4711))


def test_what_the_worker_is_told() -> None:
    assert claimed_arguments(Path("/r"), 3, debug=False) == ["/r/config.yaml", "--out", "/r", "--attempt", "3"]
    assert free_arguments("sasrec", ["a=1"], Path("/r"), debug=True) == ["sasrec", "a=1", "--out", "/r", "--debug"]
    free = free_arguments("sasrec", [], Path("/r"), debug=False, origin=["--resume", "/s"])
    assert free == ["sasrec", "--out", "/r", "--resume", "/s"]


def test_what_the_line_carries_otherwise_is_not_said_again() -> None:
    overrides = ["launch.gpus=[0, 4]", "launch={nproc: 2}", "launch.env.NCCL_DEBUG=INFO", "run.out=x", "run.seed=1"]
    assert free_arguments("sasrec", overrides, Path("/r"), debug=False) == ["sasrec", "run.seed=1", "--out", "/r"]


@pytest.mark.timeout(100)
def test_the_line_really_runs_in_another_shell(tmp_path: Path) -> None:
    arguments = ["a b", "data.path='$HOME'", "x=[1, 2]"]
    folder = tmp_path / "with space"
    folder.mkdir()
    (folder / "printer.py").write_text(PRINTER)
    line = shell_line(agent_command(2, arguments, module="printer"), {"NCCL_DEBUG": "IN FO"}, ["GONE"], folder)
    environment = {"PATH": os.environ["PATH"], "OUT": str(tmp_path), "GONE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["sh", "-c", line], cwd="/", env=environment, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(2)]
    assert [words for words, _ in seen] == [arguments, arguments]
    variables = seen[1][1]
    assert (variables["RANK"], variables["WORLD_SIZE"], variables["MASTER_ADDR"]) == ("1", "2", "127.0.0.1")
    assert (variables["NCCL_DEBUG"], variables["GONE"]) == ("IN FO", None)
    assert sys.executable in line


@pytest.mark.slow
@pytest.mark.timeout(100)
def test_a_host_whose_name_does_not_resolve(tmp_path: Path) -> None:
    (tmp_path / "printer.py").write_text(PRINTER)
    line = f"hostname no-such-host-here && {shell_line(agent_command(1, [], module='printer'), {}, (), tmp_path)}"
    own_name = ["unshare", "--uts"]
    if subprocess.run([*own_name, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("giving the machine another name for a moment needs root")
    environment = {"PATH": os.environ["PATH"], "OUT": str(tmp_path)}
    subprocess.run([*own_name, "sh", "-c", line], env=environment, capture_output=True, timeout=60, check=True)
    assert (tmp_path / "0").exists()
