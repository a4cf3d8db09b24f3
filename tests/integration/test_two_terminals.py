"""Two commands on one machine that meet at its loopback, as somebody tries several hosts out; needs no namespaces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.launch.hosts.endpoint import find_free_port
from paceline.telemetry.reader import read_run
from tests.integration.conftest import WITHOUT_GPU, Command, tiny

ENVIRONMENT = WITHOUT_GPU | {"OMP_NUM_THREADS": "1"}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_two_terminals_of_one_machine_train_together(tmp_path: Path, paceline: Callable[..., Command]) -> None:
    root, point = tmp_path / "run", f"127.0.0.1:{find_free_port('127.0.0.1')}"
    words = ["train", "sasrec", *tiny("train.max_steps=10"), "--nproc", "1", "--out", str(root)]
    words += ["--nnodes", "2", "--rdzv", point]
    both = [paceline(*words, env=ENVIRONMENT) for _ in range(2)]
    ended = [command.finish(180) for command in both]
    assert [code for code, _, _ in ended] == [0, 0], ended
    outputs = [out for _, out, _ in ended]
    assert sorted("the leader says: finished at step 10" in out for out in outputs) == [False, True]
    run = read_run(root)
    assert [(attempt.world_size, len(attempt.hosts)) for attempt in run.run.attempts] == [(2, 2)]
    again = paceline(*words, env=ENVIRONMENT)
    code, out, _ = again.finish(60)
    assert code == 0, "a finished run needs no other host"
    assert "this run has already finished" in out


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_rendezvous_that_never_fills_ends_in_time_and_leaves_no_run(
    tmp_path: Path, paceline: Callable[..., Command]
) -> None:
    root, point = tmp_path / "run", f"127.0.0.1:{find_free_port('127.0.0.1')}"
    words = ["train", "sasrec", *tiny(), "--nproc", "1", "--out", str(root), "launch.rdzv_timeout_s=3"]
    code, out, err = paceline(*words, "--nnodes", "2:3", "--rdzv", point, env=ENVIRONMENT).finish(60)
    assert code == 2
    assert "1 of 2:3 hosts here" in out
    assert "RendezvousError: not enough hosts came in time: 1 of 2:3 hosts here" in err
    assert "1 more host needed" in err
    assert not (root / "run.json").exists()
