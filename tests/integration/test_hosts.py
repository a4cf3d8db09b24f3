"""Several hosts train one run: real commands on hosts that are namespaces of this machine (hosts.py), killed, cut off and brought back."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from paceline.telemetry.layout import RunLayout
from paceline.telemetry.reader import Run, read_run
from tests.integration.conftest import losses, tiny
from tests.integration.hosts import PORT, ROOT, Host, Switch, cannot_build
from tests.integration.test_resume import samples_of_steps

pytestmark = pytest.mark.skipif(bool(cannot_build()), reason=cannot_build())

NOTICED_S = 15.0
GOING_ON_S = 60.0
SLOW_STEPS = """
import sys, time
if "paceline.worker" in sys.orig_argv and "torch.distributed.run" not in sys.orig_argv:
    from paceline.telemetry.ledger import Ledger
    write = Ledger.write
    def slow(self, **fields):
        time.sleep(0.05)
        write(self, **fields)
    Ledger.write = slow
"""
"""A run that lasts long enough for what happens to it, on any machine."""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Host]]:
    with Switch(2, tmp_path) as hosts:
        yield hosts


class Training:
    """The same command for every host."""

    def __init__(self, folder: Path, leader: Host, nnodes: str, *overrides: str, is_slow: bool = True) -> None:
        self.root = folder / "run"
        (folder / "slow").mkdir()
        (folder / "slow" / "sitecustomize.py").write_text(SLOW_STEPS)
        path = [*([str(folder / "slow")] if is_slow else []), str(ROOT), os.environ.get("PYTHONPATH", "")]
        self._environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, path))}
        fixed = ("telemetry.ledger=true", "checkpoint.every_steps=10")
        given = [*overrides, *([] if "launch.rdzv_timeout_s" in " ".join(overrides) else ["launch.rdzv_timeout_s=60"])]
        self.words = ["train", "sasrec", *tiny(*fixed, *given), "--nproc", "1", "--nnodes", nnodes]
        self.words += ["--rdzv", f"{leader.address}:{PORT}", "--out", str(self.root)]

    def start(self, *hosts: Host) -> None:
        for host in hosts:
            host.start(*self.words, environment=self._environment)

    def wait_for_attempt(self, attempt: int, steps: int = 1, timeout_s: float = 90) -> None:
        """Until so many steps of this attempt are in metrics.csv."""
        deadline = time.monotonic() + timeout_s
        while sum(line.startswith(f"{attempt},") for line in self._lines()) < steps:
            assert time.monotonic() < deadline, f"no step of attempt {attempt} in {timeout_s} s"
            time.sleep(0.05)

    def _lines(self) -> list[str]:
        metrics = RunLayout(self.root).metrics
        return metrics.read_text().splitlines() if metrics.exists() else []


def wait_for(is_true: Callable[[], bool], timeout_s: float, what: str) -> float:
    began = time.monotonic()
    while not is_true():
        assert time.monotonic() - began < timeout_s, f"{what}: not within {timeout_s} s"
        time.sleep(0.05)
    return time.monotonic() - began


def ranks_on(host: Host) -> list[psutil.Process]:
    found = []
    for process in host.processes():
        try:
            if "paceline.worker" in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def counted_samples(run: Run) -> dict[int, list[int]]:
    """Of each step what counts: not what a later attempt did again."""
    began = {event["attempt"]: event["start_step"] for event in run.events_of("plan")}
    lines = [
        line
        for line in run.ledger()
        if not any(attempt > line["attempt"] and start < line["step"] for attempt, start in began.items())
    ]
    return samples_of_steps(lines)


def assert_same_training(run: Run, reference: Run, steps: int) -> None:
    """In every step the samples of the uninterrupted run on one rank, none twice, none missing; and its loss curve."""
    samples = counted_samples(run)
    assert sorted(samples) == list(range(1, steps + 1))
    assert samples == counted_samples(reference)
    for first in range(1, steps - 4, 5):  # 152 samples in batches of 37: five steps are an epoch
        seen = sorted(sample for step in range(first, first + 5) for sample in samples[step])
        assert seen == list(range(152)), f"the epoch from step {first}"
    for ours, theirs in zip(losses(run), losses(reference), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)


@pytest.mark.timeout(180)
def test_two_hosts_train_as_one_host_with_as_many_ranks(tmp_path: Path, hosts: list[Host], run_ranks) -> None:
    a, b = hosts
    training = Training(tmp_path, a, "2", "train.max_steps=20", is_slow=False)
    training.start(a, b)
    assert a.wait(120) == 0, a.text()
    assert b.wait(20) == 0, b.text()
    run = read_run(training.root)
    assert [attempt.world_size for attempt in run.run.attempts] == [2]
    assert [run.beats(rank)[0]["host"] for rank in (0, 1)] == ["host-a", "host-b"]
    assert "launch.interface: auto → eth0" in a.text()
    assert "the leader says: finished at step 20" in b.text()
    assert not list(training.root.glob(".rendezvous"))
    reference = run_ranks(
        2, "train.max_steps=20", "telemetry.ledger=true", "checkpoint.every_steps=10", name="reference"
    )
    assert losses(run) == losses(reference)
    assert counted_samples(run) == counted_samples(reference)


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_a_killed_host_is_done_without_and_taken_in_again(tmp_path: Path, hosts: list[Host], run_ranks) -> None:
    a, b = hosts
    training = Training(tmp_path, a, "1:2", "train.max_steps=500")
    training.start(a, b)
    training.wait_for_attempt(1, steps=25)
    killed = time.monotonic()
    b.kill()
    a.wait_for("host-b (10.253.77.2) was lost", NOTICED_S)
    noticed_s = time.monotonic() - killed
    training.wait_for_attempt(2, timeout_s=GOING_ON_S)
    going_on_s = time.monotonic() - killed
    training.wait_for_attempt(2, steps=20)
    began = time.monotonic()
    training.start(b)
    training.wait_for_attempt(3)
    back_s = time.monotonic() - began
    assert a.wait(200) == 0, a.text()
    assert b.wait(20) == 0, b.text()
    print(f"noticed after {noticed_s:.1f} s, went on after {going_on_s:.1f} s, taken in again after {back_s:.1f} s")
    assert going_on_s < GOING_ON_S
    run = read_run(training.root)
    assert [attempt.world_size for attempt in run.run.attempts] == [2, 1, 2]
    assert [attempt.reason for attempt in run.run.attempts][1:] == ["resize", "length"]
    reference = run_ranks(1, "train.max_steps=500", "telemetry.ledger=true", name="reference")
    assert_same_training(run, reference, 500)


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_a_link_that_goes_down_and_comes_back(tmp_path: Path, hosts: list[Host], run_ranks) -> None:
    a, b = hosts
    training = Training(tmp_path, a, "1:2", "train.max_steps=700")
    training.start(a, b)
    training.wait_for_attempt(1, steps=25)
    down = time.monotonic()
    b.unplug()
    a.wait_for("nothing was heard of it for 10 s", NOTICED_S)
    noticed_s = time.monotonic() - down
    b.wait_for("the leader was lost: nothing was heard of it for 10 s; ending the ranks of this host", 5)
    wait_for(lambda: not ranks_on(b), 5, "the isolated host has ranks")
    ended_s = time.monotonic() - down
    training.wait_for_attempt(2, timeout_s=GOING_ON_S)
    going_on_s = time.monotonic() - down
    assert "waiting for the leader" in b.text()
    b.plug()
    up = time.monotonic()
    training.wait_for_attempt(3)
    back_s = time.monotonic() - up
    assert a.wait(200) == 0, a.text()
    assert b.wait(20) == 0, b.text()
    print(
        f"noticed after {noticed_s:.1f} s, the isolated host had no rank after {ended_s:.1f} s, "
        f"went on after {going_on_s:.1f} s; back {back_s:.1f} s after the link"
    )
    run = read_run(training.root)
    assert [attempt.world_size for attempt in run.run.attempts] == [2, 1, 2]
    assert_same_training(run, run_ranks(1, "train.max_steps=700", "telemetry.ledger=true", name="reference"), 700)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_power_cut_sends_no_goodbye_and_is_noticed_all_the_same(tmp_path: Path, hosts: list[Host]) -> None:
    a, b = hosts
    training = Training(tmp_path, a, "1:2", "train.max_steps=300")
    training.start(a, b)
    training.wait_for_attempt(1, steps=15)
    b.unplug()
    cut = time.monotonic()
    b.kill()
    a.wait_for("host-b (10.253.77.2) was lost: nothing was heard of it for 10 s", NOTICED_S)
    noticed_s = time.monotonic() - cut
    training.wait_for_attempt(2, timeout_s=GOING_ON_S)
    going_on_s = time.monotonic() - cut
    print(f"noticed after {noticed_s:.1f} s, went on after {going_on_s:.1f} s")
    assert going_on_s < GOING_ON_S
    assert a.wait(120) == 0, a.text()


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_a_leader_that_is_killed_and_started_again(tmp_path: Path, hosts: list[Host], run_ranks) -> None:
    a, b = hosts
    training = Training(tmp_path, a, "2", "train.max_steps=200")
    training.start(a, b)
    training.wait_for_attempt(1, steps=25)
    a.kill()
    b.wait_for("the leader was lost: it closed the connection; ending the ranks of this host", 5)
    wait_for(lambda: not ranks_on(b), 5, "the member has ranks")
    b.wait_for("waiting for the leader", 15)
    training.start(a)
    assert a.wait(200) == 0, a.text()
    assert b.wait(20) == 0, b.text()
    run = read_run(training.root)
    assert [attempt.reason for attempt in run.run.attempts] == ["its launcher was killed", "length"]
    assert_same_training(run, run_ranks(1, "train.max_steps=200", "telemetry.ledger=true", name="reference"), 200)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_an_operator_takes_one_host_out_and_then_stops_the_run(tmp_path: Path, hosts: list[Host]) -> None:
    a, b = hosts
    training = Training(tmp_path, a, "1:2", "train.max_steps=100000")
    training.start(a, b)
    training.wait_for_attempt(1, steps=5)
    b.interrupt()
    assert b.wait(60) == 130, b.text()
    assert "leaving the run at the next step" in b.text()
    training.wait_for_attempt(2, steps=5)
    run = read_run(training.root)
    first, second = run.run.attempts
    assert (first.state, first.reason, second.world_size) == ("stopped", "resize", 1)
    starts = [event["start_step"] for event in run.events_of("plan")]
    assert starts == [0, first.step], "nothing was trained twice"
    a.interrupt()
    assert a.wait(60) == 130, a.text()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_ctrl_c_on_the_leader_ends_every_host(tmp_path: Path, hosts: list[Host]) -> None:
    a, b = hosts
    training = Training(tmp_path, a, "2", "train.max_steps=100000")
    training.start(a, b)
    training.wait_for_attempt(1, steps=5)
    a.interrupt()
    assert a.wait(60) == 130, a.text()
    assert b.wait(20) == 130, b.text()
    assert "the leader says: stopped at step" in b.text()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_rank_that_dies_on_a_member_is_named_and_brought_back_as_often_as_wanted(
    tmp_path: Path, hosts: list[Host]
) -> None:
    a, b = hosts
    training = Training(tmp_path, a, "2", "train.max_steps=100000", "supervise.max_restarts=1")
    training.start(a, b)
    for attempt in (1, 2):
        training.wait_for_attempt(attempt, steps=15)
        rank = next(
            each for each in ranks_on(b) if "torch.distributed.run" not in each.cmdline() and not each.children()
        )
        rank.kill()
    assert a.wait(90) == 4, a.text()
    assert b.wait(20) == 4, b.text()
    assert "restart 1 of 1" in a.text()
    for host in (a, b):
        assert "RankLostError: rank 1 (pid" in host.text()
        assert "was killed by signal 9" in host.text()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_hosts_that_cannot_come_together_say_why(tmp_path: Path, hosts: list[Host]) -> None:
    """Nobody at the address; another configuration; a run directory that is not shared; nobody else comes."""
    a, b = hosts
    training = Training(tmp_path, a, "2", "launch.rdzv_timeout_s=4")
    nobody = [word.replace(a.address, "10.253.77.9") for word in training.words]
    b.start(*nobody)
    assert b.wait(60) == 2, b.text()
    assert "RendezvousError: no leader answered at 10.253.77.9:29500 within 4 s: " in b.text()
    assert "waiting for the leader at 10.253.77.9:29500" in b.text()

    waiting = [word.replace("rdzv_timeout_s=4", "rdzv_timeout_s=40") for word in training.words]
    a.start(*waiting)
    a.wait_for("1 of 2 hosts here: host-a (10.253.77.1), 1 rank; 1 more host needed", 30)
    b.start(*training.words, "run.seed=1")
    assert b.wait(30) == 2, b.text()
    assert "host-b has been told to train another run; different are:\n    run.seed: 0 → 1" in b.text()
    assert "refused: host host-b" in a.text()

    hidden = ["sh", "-c", f'mount -t tmpfs tmpfs {training.root}; "$@"; exit $?', "sh"]
    b.boot([*hidden, sys.executable, "-m", "paceline", *training.words])
    assert b.wait(40) == 2, b.text()
    assert f"host-b does not see the leader's run directory ({training.root})" in b.text()
    assert a.wait(60) == 2, a.text()
    assert "RendezvousError: not enough hosts came in time: 1 of 2 hosts here" in a.text()
    assert not (training.root / "run.json").exists()
