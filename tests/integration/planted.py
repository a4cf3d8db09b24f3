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
