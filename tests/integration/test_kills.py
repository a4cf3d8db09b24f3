"""Guarantee 4 through the whole command: `paceline train` killed at random moments and started again, bit for bit.

Launcher, agent and ranks are real processes. Nothing is planted into the product; the disk is slow (every fsync of a worker takes a
while), so that kills land inside a save. Each kill prints where it landed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from paceline.telemetry.checkpoints import list_checkpoints, read_checkpoint
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import Pulse, read_pulse
from paceline.telemetry.reader import Run, read_run
from paceline.telemetry.run_file import load_run_file
from tests.integration.conftest import (
    HARD,
    WITHOUT_GPU,
    Command,
    Zygote,
    assert_gone,
    assert_same_bits,
    checkpoint_steps,
    commands,
    start_in,
    tiny,
)

SEED = time.time_ns() % 1_000_000
"""Draws the moments; put a printed one here to draw them again."""
STEPS_PER_EPOCH = 5  # 152 samples in batches of 37
SLOW_DISK = """
import os, sys, time
if "paceline.worker" in sys.orig_argv and "torch.distributed.run" not in sys.orig_argv:
    fsync = os.fsync
    def slow(descriptor):
        time.sleep(0.02)
        fsync(descriptor)
    os.fsync = slow
"""


@dataclass(frozen=True)
class Moment:
    """When to kill whom."""

    victim: str
    """rank 0, rank 1, …, agent, launcher"""
    step: int
    """not before this step has begun"""
    place: str = ""
    """save: while one is under way; epoch: in the first step of an epoch; nothing: wherever it is by then"""
    delay_s: float = 0.0
    """after its step has begun: not every kill comes at the beginning of one"""

    @property
    def rank(self) -> int:
        """Whose pulse tells where the run is."""
        return int(self.victim.removeprefix("rank ")) if self.victim.startswith("rank ") else 0

    def has_come(self, pulse: Pulse | None, saving: list[str]) -> bool:
        if pulse is None or pulse.step < self.step:
            return False
        if self.place == "epoch":
            return pulse.step % STEPS_PER_EPOCH == 1
        return bool(saving) or self.place != "save"


@dataclass(frozen=True)
class Kill:
    """Where a kill landed."""

    moment: Moment
    attempt: int
    pulse: Pulse
    saving: list[str]
    """saves that were under way"""

    def __str__(self) -> str:
        where = f"step {self.pulse.step:3d}  {self.pulse.phase:10s}"
        saving = ", ".join(self.saving) or "no save under way"
        return f"attempt {self.attempt:2d}  {self.moment.victim:8s}  {where}  {saving}"


class Runner:
    """Starts the same command again and again, on a slow disk, and kills it when asked to."""

    def __init__(self, paceline: Callable[..., Command], folder: Path, nproc: int, *overrides: str) -> None:
        self.root = folder / "run"
        self.layout = RunLayout(self.root)
        self.attempt = 0
        self.output = ""
        """what the last start that came to its end printed"""
        self._paceline = paceline
        arguments = ["sasrec", *tiny(*HARD, *overrides), "--nproc", str(nproc), "--out", str(self.root)]
        self._arguments = ["train", *arguments]
        disk = folder / "slow disk"
        disk.mkdir(parents=True)
        (disk / "sitecustomize.py").write_text(SLOW_DISK)
        path = os.pathsep.join(filter(None, [str(disk), os.environ.get("PYTHONPATH")]))
        self._environment = WITHOUT_GPU | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}

    def start(self) -> Command:
        self.attempt += 1
        return self._paceline(*self._arguments, env=self._environment)

    def finish(self) -> Run:
        """Starts it and lets it come to its end; nothing of it is left running."""
        code, out, err = self.start().finish(timeout_s=300)
        assert (code, err) == (0, ""), (out, err)
        self.output = out
        assert_gone([process for process in psutil.process_iter(["cmdline"]) if self._is_ours(process)])
        return read_run(self.root)

    def kill(self, moment: Moment) -> Kill:
        """Starts it, kills at the moment, and returns when everything has gone."""
        command = self.start()
        while True:
            pulse = self.wait_for(command, moment)
            time.sleep(moment.delay_s)
            processes = command.descendants()
            victim = self._victim(command, moment, pulse)
            victim.suspend()  # held still, so that what is noted is where it dies
            pulse, saving = self.pulse(moment.rank), self.saving()
            if pulse is not None and moment.has_come(pulse, saving):
                break
            victim.resume()
        victim.kill()
        code, out, err = command.finish()
        assert code == (-9 if moment.victim == "launcher" else 4), (out, err)
        assert_gone(processes, timeout_s=60)
        self._assert_recorded(moment)
        return Kill(moment, self.attempt, pulse, saving)

    def _assert_recorded(self, moment: Moment) -> None:
        """Whoever is left writes down how it ended; a launcher that was killed could not."""
        run = load_run_file(self.root)
        assert run is not None
        ended = run.attempts[-1]
        expected = (None, "running") if moment.victim == "launcher" else (4, "failed")
        assert (ended.exit_code, ended.state) == expected

    def wait_for(self, command: Command, moment: Moment) -> Pulse:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and command.process.poll() is None:
            pulse = self.pulse(moment.rank)
            if pulse is not None and moment.has_come(pulse, self.saving()):
                return pulse
            time.sleep(0.002)
        raise AssertionError(f"{moment} did not come: {self.pulse(moment.rank)}, exit code {command.process.poll()}")

    def pulse(self, rank: int) -> Pulse | None:
        """Where the rank of this attempt is."""
        run = load_run_file(self.root)
        if run is None or len(run.attempts) != self.attempt:
            return None
        return read_pulse(Path(run.attempts[-1].pulses), rank)

    def saving(self) -> list[str]:
        """The saves that are under way, or that a kill cut short."""
        return sorted(path.name for path in self.layout.checkpoints.glob(".saving-*"))

    def _victim(self, command: Command, moment: Moment, pulse: Pulse) -> psutil.Process:
        if moment.victim == "agent":
            return command.agent()
        return psutil.Process(command.process.pid if moment.victim == "launcher" else pulse.pid)

    def _is_ours(self, process: psutil.Process) -> bool:
        return str(self.root) in (process.info["cmdline"] or ())


def show(kills: list[Kill]) -> str:
    return "\n".join(["", f"seed {SEED}", *map(str, kills)])


THREE = (3, "train.max_steps=25")


@pytest.fixture(scope="module")
def reference(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The uninterrupted run: of the same ranks, under another launcher and with a quick disk, neither of which is in its bits."""
    ranks, length = THREE
    started = start_in(zygote, tmp_path_factory.mktemp("uninterrupted"), ranks, *HARD, length)
    run = started.wait()
    assert started.codes == [0] * ranks, started.text()
    return run


@pytest.mark.timeout(240)
def test_three_kills_on_three_ranks(paceline, tmp_path: Path, reference: Run) -> None:
    """Of rank 0 inside a save, of the agent and of the launcher, in any order, between steps 4 and 19."""
    draw = random.Random(SEED)
    runner = Runner(paceline, tmp_path, *THREE)
    victims = ["rank 0", "agent", "launcher"]
    draw.shuffle(victims)
    kills = []
    for index, victim in enumerate(victims):
        place, step = "save" if victim == "rank 0" else "", 5 * index + draw.randint(4, 9)
        kills.append(runner.kill(Moment(victim, step, place, 0 if place else draw.uniform(0, 0.1))))
        if victim == "rank 0":
            assert runner.saving() == kills[-1].saving, "cut short for good: only rank 0 could have ended it"
    print(show(kills))
    run = runner.finish()
    assert len(run.run.attempts) == 4
    assert runner.saving() == []
    assert checkpoint_steps(runner.root)[-1] == 25
    assert_same_bits(run, reference)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_second_start_ends_the_orphans_of_the_first(
    paceline, tmp_path: Path, reference: Run, request: pytest.FixtureRequest
) -> None:
    """The launcher is killed while agent and ranks hang in the middle of a save: they outlive it, until the next start."""
    runner = Runner(paceline, tmp_path, *THREE)
    first = runner.start()
    orphans, agent = hang_inside_save(runner, first), first.agent()
    request.addfinalizer(lambda: [process.kill() for process in [agent, *orphans] if process.is_running()])
    loaders = [child for process in orphans for child in process.children()]
    assert len(loaders) == 3
    agent.suspend()  # it would pass on the news of its launcher's death
    first.process.kill()
    first.finish()
    assert {process.status() for process in [agent, *orphans]} == {psutil.STATUS_STOPPED}
    before = {path.name: read_checkpoint(path).manifest for path in list_checkpoints(runner.layout.checkpoints)}
    run = runner.finish()
    assert_gone([*orphans, *loaders], timeout_s=0)
    agent.resume()
    assert_gone([agent])
    assert "ended worker processes" in runner.output
    assert all(str(process.pid) in runner.output for process in orphans)
    assert run.events_of("plan")[-1]["start_step"] == max((each.step for each in before.values()), default=0)
    for path in list_checkpoints(runner.layout.checkpoints):
        manifest = read_checkpoint(path).manifest
        assert manifest.attempt == 2 or manifest == before[path.name], (
            "nothing of the first came after the second began"
        )
    assert checkpoint_steps(runner.root)[-1] == 25
    assert runner.saving() == []
    assert_same_bits(run, reference)


def hang_inside_save(runner: Runner, command: Command) -> list[psutil.Process]:
    """Suspends all ranks while a save is under way; returns them."""
    while True:
        runner.wait_for(command, Moment("rank 0", 6, "save"))
        pulses = [runner.pulse(rank) for rank in range(3)]
        ranks = [psutil.Process(pulse.pid) for pulse in pulses if pulse is not None]
        for process in ranks:
            process.suspend()
        if runner.saving() and len(ranks) == 3:
            return ranks
        for process in ranks:
            process.resume()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_kills_on_four_ranks(paceline, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A larger table: several shards, written by several ranks. Kills of every kind, at least three inside a save, one after an epoch."""
    draw = random.Random(SEED)
    size = ("data.items=44000", "model.width=64", "loss.kind=bce", "train.max_steps=82")
    with commands(tmp_path) as start:
        reference = Runner(start, tmp_path / "uninterrupted", 4, *size).finish()
    runner = Runner(paceline, tmp_path, 4, *size)
    aims = [("rank 0", "save"), ("rank 1", "save"), ("agent", "save"), ("launcher", "save"), ("rank 2", "epoch")]
    aims += [("rank 3", ""), ("rank 0", ""), ("agent", ""), ("launcher", ""), (f"rank {draw.randrange(4)}", "")]
    draw.shuffle(aims)
    kills = []
    for index, (victim, place) in enumerate(aims):
        delay_s = 0 if place else draw.uniform(0, 0.3)
        kills.append(runner.kill(Moment(victim, 7 * index + draw.randint(3, 9), place, delay_s)))
    run = runner.finish()
    with capsys.disabled():
        print(show(kills))
    assert len(run.run.attempts) == 11
    assert sum(bool(kill.saving) for kill in kills) >= 3
    assert run.events_of("checkpoint")[-1]["shards"] > 1
    assert checkpoint_steps(runner.root)[-1] == 82
    assert_same_bits(run, reference)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", [1, 3])
def test_kills_inside_a_save_of_a_sharded_run(paceline, tmp_path: Path, stage: int) -> None:
    """Several shards, of tensors that one rank alone has (1) or that all of them have assembled (3)."""
    draw = random.Random(SEED)
    sharded = (
        "data.items=44000",
        "model.width=64",
        "loss.kind=bce",
        "train.max_steps=30",
        f"parallel.zero_stage={stage}",
    )
    with commands(tmp_path) as start:
        reference = Runner(start, tmp_path / "uninterrupted", 3, *sharded).finish()
    runner = Runner(paceline, tmp_path, 3, *sharded)
    victims = ["rank 0", "rank 1", "launcher"]
    draw.shuffle(victims)
    kills = [runner.kill(Moment(victim, 7 * index + 5, "save")) for index, victim in enumerate(victims)]
    print(show(kills))
    run = runner.finish()
    assert len(run.run.attempts) == 4
    assert run.events_of("checkpoint")[-1]["shards"] > 1
    assert checkpoint_steps(runner.root)[-1] == 30
    assert_same_bits(run, reference)
