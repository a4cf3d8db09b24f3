"""Faults planted into a rank from outside, before the worker starts: the product itself has no hooks for them."""

from __future__ import annotations

import os
import signal
import time


def plant(text: str, rank: int) -> None:
    """`name:key=value,…`, applied in the rank that `rank=` names (in all of them without it)."""
    name, _, rest = text.partition(":")
    options = {key: float(value) for key, value in (pair.split("=") for pair in rest.split(",") if pair)}
    if options.pop("rank", rank) == rank:
        globals()[f"_{name}"](**options)


def _at_step(step: float, act) -> None:
    """Calls `act(train_step)` right before that optimizer step."""
    from paceline.engine.step import TrainStep

    run = TrainStep.run

    def wrapped(self, number, batches):
        if number == step:
            act(self)
        return run(self, number, batches)

    TrainStep.run = wrapped


def _nan(step: float) -> None:
    """The loss of this rank is not a number in that step."""

    def act(train_step) -> None:
        loss = train_step._workload.loss

        def broken(model, batch):
            train_step._workload.loss = loss
            loss_sum, weight = loss(model, batch)
            return loss_sum * float("nan"), weight

        train_step._workload.loss = broken

    _at_step(step, act)


def _desync(step: float) -> None:
    """One weight of this rank changes by a little before that step."""
    import torch

    def act(train_step) -> None:
        with torch.no_grad():
            next(train_step._strategy.model.parameters()).view(-1)[3] += 1e-3

    _at_step(step, act)


def _sleep(seconds: float) -> None:
    """Every step takes this much longer."""
    from paceline.engine.step import TrainStep

    run = TrainStep.run

    def wrapped(self, number, batches):
        time.sleep(seconds)
        return run(self, number, batches)

    TrainStep.run = wrapped


def _kill(step: float) -> None:
    """This rank dies before that step."""
    _at_step(step, lambda _: os.kill(os.getpid(), signal.SIGKILL))


def _raise(step: float) -> None:
    """This rank raises before that step."""

    def act(_) -> None:
        raise ZeroDivisionError("planted")

    _at_step(step, act)


def _slow_evaluation(seconds: float) -> None:
    """Every block of an evaluation takes this much longer."""
    from paceline.engine.evaluation import Evaluator

    score = Evaluator._score

    def wrapped(self, *arguments):
        time.sleep(seconds)
        return score(self, *arguments)

    Evaluator._score = wrapped


def _stall(step: float) -> None:
    """This rank hangs for a while before that step."""
    _at_step(step, lambda _: time.sleep(6))


def _spin(step: float) -> None:
    """This rank computes for ever in that step, where it should fetch its data."""
    from paceline.engine.step import TrainStep

    run = TrainStep.run

    def spin():
        while True:
            sum(range(1000))
        yield

    def wrapped(self, number, batches):
        return run(self, number, spin() if number == step else batches)

    TrainStep.run = wrapped


def _pauses(seconds: float, kill_rank: float, kill_step: float) -> None:
    """Every evaluation takes this much longer, and so does the writing of every checkpoint; a rank dies before some step."""
    from paceline.engine.checkpoint.writer import Writer
    from paceline.engine.evaluation import Evaluator

    for kind, name in ((Evaluator, "run"), (Writer, "_write_snapshot")):

        def wrapped(self, *arguments, call=getattr(kind, name)):
            time.sleep(seconds)
            return call(self, *arguments)

        setattr(kind, name, wrapped)
    if os.environ["RANK"] == str(int(kill_rank)):
        _kill(kill_step)


def _terminate(step: float) -> None:
    """This rank gets SIGTERM before that step."""
    _at_step(step, lambda _: os.kill(os.getpid(), signal.SIGTERM))


def _terminate_in_evaluation(step: float) -> None:
    """This rank gets SIGTERM in the middle of its first evaluation after that step."""
    from paceline.engine.evaluation import Evaluator

    score = Evaluator._score
    is_armed = step == 0

    def arm(_) -> None:
        nonlocal is_armed
        is_armed = True

    def wrapped(self, *arguments):
        nonlocal is_armed
        if is_armed:
            is_armed = False
            os.kill(os.getpid(), signal.SIGTERM)
        return score(self, *arguments)

    if step:
        _at_step(step, arm)
    Evaluator._score = wrapped


def _request(step: float) -> None:
    """Somebody asks this attempt to stop before that step, and this rank has seen it when the step begins."""
    from paceline.telemetry.stop_request import write_stop_request

    def act(train_step) -> None:
        watch = train_step._watch
        write_stop_request(watch._layout.stop_request, watch._attempt, reason="stop_command", by="a test")
        _wait_for_reason(watch)

    _at_step(step, act)


def _overdue(step: float) -> None:
    """The time limit (stop.max_hours) passes before that step."""
    _at_step(step, lambda train_step: _wait_for_reason(train_step._watch))


def _wait_for_reason(watch) -> None:
    deadline = time.monotonic() + 20
    while watch.reason is None and time.monotonic() < deadline:
        time.sleep(0.01)


def _full_disk(**options: float) -> None:
    """The disk is full while certain steps are saved; see full_disk.py."""
    import full_disk

    full_disk.plant(**options)


def _compiler(refuses_on: float) -> None:
    """torch.compile without its compiler, which takes half a minute; on that rank it refuses."""
    from paceline.engine import compilation

    def compile_nothing(graph, inputs):
        if os.environ["RANK"] == str(int(refuses_on)):
            raise ZeroDivisionError("planted")
        return graph.forward

    compilation.BACKEND = compile_nothing


def _hungry(step: float, evaluation: float = 0) -> None:
    """The model asks for more memory than there can be, in that step (0: before the first) or in the first evaluation after it."""
    import torch

    from paceline.recipes.sasrec.workload import SasrecWorkload

    name = "predict" if evaluation else "loss"
    compute = getattr(SasrecWorkload, name)

    def ask(self, model, batch):
        torch.empty(2**50, device=next(model.parameters()).device)
        return compute(self, model, batch)

    if step:
        _at_step(step, lambda _: setattr(SasrecWorkload, name, ask))
    else:
        setattr(SasrecWorkload, name, ask)


def _kill_loader(step: float) -> None:
    """A loader process of this rank is killed before that step."""
    import psutil

    _at_step(step, lambda _: psutil.Process().children()[0].kill())
