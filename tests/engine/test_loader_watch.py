"""A loader process that dies, hangs, is stopped or raises is named, with what it was fetching."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time

import psutil
import pytest

from paceline.config.arithmetic import plan_length
from paceline.engine.build import build_trainer
from paceline.engine.loader import Loader
from paceline.engine.loader_board import Board
from paceline.engine.loader_watch import FailedFetch
from paceline.engine.order import SampleOrder
from paceline.errors import DataError, LoaderError, PacelineError
from tests.engine.conftest import Numbers, Regression

BATCH = {"global_batch": 13, "micro_batch": 7}


class Troubled(Numbers):
    """Fetches until it is asked for a certain sample."""

    def __init__(self, sample: int, trouble) -> None:
        super().__init__(40)
        self.sample, self.trouble = sample, trouble

    def fetch(self, ids, draw):
        if self.sample in ids:
            self.trouble()
        return super().fetch(ids, draw)


def first_sample(step: int) -> int:
    """The first sample of a step, whose second micro-step has six others."""
    return int(SampleOrder(40, 13, 4, seed=0).batch(0, step - 1)[0])


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def load(make_context, trouble, num_workers: int = 2, timeout_s: float = 30.0):
    """(problem of the error that loading ends with, its type, pids of the loader processes)."""
    data = {"num_workers": num_workers, "loader_timeout_s": timeout_s}
    context = make_context({"train": BATCH, "data": data}, rank=0)
    loader = Loader(context, Troubled(first_sample(3), trouble), plan_length(context.config.train, 40))
    gc.collect()  # temporary files that the loader of another test had open when a signal ended it
    before = children()
    batches = loader.load(1, 4)
    pids = sorted(children() - before)
    with pytest.raises(PacelineError) as caught:
        list(batches)
    return caught.value, pids


def test_a_killed_process_is_named_at_once_with_what_it_fetched(make_context):
    began = time.monotonic()
    error, pids = load(make_context, lambda: os.kill(os.getpid(), signal.SIGKILL))
    (problem,) = error.problems
    assert isinstance(error, LoaderError)
    assert time.monotonic() - began < 25, "long before the time limit"
    assert any(f"loader process {pid} was killed by SIGKILL while fetching step 3" in problem.what for pid in pids)
    assert f"(samples {first_sample(3)}, " in problem.what
    assert "2 loader processes" in problem.where
    assert "out-of-memory" in problem.do


def test_a_process_that_hangs_is_named_with_its_state_and_its_stack(make_context, capfd):
    error, pids = load(make_context, lambda: time.sleep(600), timeout_s=1.0)
    (problem,) = error.problems
    assert isinstance(error, LoaderError)
    assert "no batch came from the loader for 1 s (data.loader_timeout_s)" in problem.what
    assert f"has been fetching step 3, micro-step 0 (samples {first_sample(3)}, " in problem.what
    assert any(f"process {pid} is sleeping (S), in <lambda> (test_loader_watch.py:" in problem.where for pid in pids)
    assert "< fetch (test_loader_watch.py:" in problem.where
    assert "it has been idle for" in problem.where, "the other one"
    assert "Current thread" in capfd.readouterr().err, "the whole stack is in the rank's log"


def test_a_stopped_process_cannot_answer_and_is_said_to_be_stopped(make_context):
    error, pids = load(make_context, lambda: os.kill(os.getpid(), signal.SIGSTOP), num_workers=1, timeout_s=1.0)
    (problem,) = error.problems
    assert f"process {pids[0]} " in problem.what
    assert "fetching step 3, micro-step 0" in problem.what, "whether the batches before it could be handed over, or not"
    assert f"process {pids[0]} is stopped (T), and did not answer" in problem.where
    assert f"kill -CONT {pids[0]}" in problem.do


def test_a_process_that_goes_on_while_it_is_asked_is_not_to_blame(make_context, monkeypatch):
    """As on a network file system that stood still for a moment: the batch comes while its process is asked for its stack."""
    stopped, arrived = [], []

    def ask(self, pid):
        stopped.append(pid)
        before, deadline = len(arrived), time.monotonic() + 30
        os.kill(pid, signal.SIGCONT)
        while len(arrived) == before and time.monotonic() < deadline:
            time.sleep(0.01)
        return ""

    monkeypatch.setattr(Board, "ask_stack", ask)
    context = make_context({"train": BATCH, "data": {"num_workers": 1, "loader_timeout_s": 1.0}}, rank=0)
    samples = Troubled(first_sample(2), lambda: os.kill(os.getpid(), signal.SIGSTOP))
    loader = Loader(context, samples, plan_length(context.config.train, 40))
    for batch in loader.load(1, 4):
        arrived.append(batch.step)
    assert sorted(set(arrived)) == [1, 2, 3, 4]
    assert stopped


def test_a_process_that_dies_while_the_rank_does_something_else_is_named_there(make_context):
    data = {"num_workers": 1, "loader_timeout_s": None}
    context = make_context({"train": BATCH, "data": data})
    before = children()
    batches = Loader(context, Numbers(40), plan_length(context.config.train, 40)).load(1, 4)
    next(batches)
    (pid,) = children() - before
    threading.Timer(0.1, os.kill, (pid, signal.SIGKILL)).start()
    with pytest.raises(LoaderError, match=f"loader process {pid} was killed by SIGKILL while idle"):
        threading.Event().wait(20)


def test_an_exception_in_a_loader_process_arrives_as_what_it_is(make_context):
    def broken() -> None:
        raise DataError("the file is cut off", "a.flac:7", "prepare it again")

    error, _ = load(make_context, broken)
    assert isinstance(error, DataError)
    assert (error.problems[0].where, error.problems[0].do) == ("a.flac:7", "prepare it again")
    error, pids = load(make_context, lambda: {}["key"])
    assert error.problems[0].what == "KeyError: 'key'"
    assert "step 3, micro-step 0 (samples" in error.problems[0].where
    assert "test_loader_watch.py:" in error.problems[0].where
    assert any(f"loader process {pid}," in error.problems[0].where for pid in pids)
    assert "in <lambda>" in error.__notes__[0]


def test_an_error_that_is_not_ours_keeps_its_words():
    try:
        raise ValueError("seven\nlines")
    except ValueError as error:
        failed = FailedFetch.of(error)
    assert failed.to_error(3, "step 1").problems[0].what == "ValueError: seven\nlines"


class Collecting(Numbers):
    def fetch(self, ids, draw):
        gc.collect()
        return super().fetch(ids, draw)


class Ending:
    """Part of a cycle; removes its file in the process that collects it."""

    def __init__(self, path) -> None:
        self.itself, self.path = self, path
        path.touch()

    def __del__(self) -> None:
        self.path.unlink()


def test_a_loader_process_does_not_end_what_its_rank_made(make_context, tmp_path):
    context = make_context({"train": BATCH, "data": {"num_workers": 1}})
    loader = Loader(context, Collecting(40), plan_length(context.config.train, 40))
    path = tmp_path / "made-by-the-rank"
    gc.collect()
    gc.disable()
    try:
        Ending(path)
        assert len(list(loader.load(1, 2))) > 1
        assert path.exists()
    finally:
        gc.enable()
    gc.collect()
    assert not path.exists()


class Heavy(Numbers):
    is_heavy = True


class HeavyRegression(Regression):
    def __init__(self) -> None:
        super().__init__()
        self._train = Heavy(40)


def test_the_number_of_processes_is_chosen_and_recorded_and_changes_no_digit(make_context, monkeypatch):
    losses = []
    monkeypatch.setattr("paceline.engine.loader.cpu_count", lambda: 8)
    for workload, num_workers in ((Regression(), "auto"), (Regression(), 1), (HeavyRegression(), "auto")):
        sections = {
            "train": {"max_steps": 7, **BATCH},
            "data": {"num_workers": num_workers},
            "telemetry": {"log_every": 1, "tensorboard": False},
        }
        context = make_context(sections, given={"data.prefetch", "data.loader_timeout_s"})
        trainer = build_trainer(context, workload)
        trainer.run()
        trainer.close()
        rows = context.layout.metrics.read_text().splitlines()[1:][-7:]
        losses.append([row.split(",")[4:7] for row in rows])
    assert losses[0] == losses[1] == losses[2]
    events = context.layout.events.read_text().splitlines()
    chosen = [line for line in events if '"about":"data.num_workers"' in line]
    assert '"effective":0,"reason":"fetching is light' in chosen[0]
    assert '"effective":1,"reason":"as requested"' in chosen[1]
    assert '"effective":2,"reason":"8 cores // 1 ranks = 8 each' in chosen[2]
    waits = [line for line in events if '"about":"data.loader_timeout_s"' in line]
    assert len(waits) == 2, "without loader processes there is nothing to wait for"
    assert '"requested":"auto","effective":300.0,"reason":"half of parallel.timeout_s=600"' in waits[0]
    notes = [line for line in events if '"kind":"note"' in line]
    assert len(notes) == 2
    assert "data.prefetch has no effect" in notes[0]
