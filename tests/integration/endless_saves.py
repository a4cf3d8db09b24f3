"""Saves a run's state without end, in a child that is killed: for each line on the standard input, such as `3 0.71`, once.

That is: after its third save, and 71 % of the time that it last took from one save to the next; so the machine's speed does not matter.
The child begins where the one before it left the run directory, through the product's own start. Answers one JSON line per kill:
{"start": the step it began at, "hidden": what is hidden in checkpoints/ after its start, "code": how it ended}.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch._dynamo  # the first optimizer imports it, which would cost every child seconds

from paceline.engine.checkpoint.saver import Saver
from paceline.engine.checkpoint.start import choose_start
from paceline.engine.precision import Precision
from paceline.engine.state import TrainState
from paceline.engine.strategies.base import Strategy
from paceline.parentage import die_with_parent
from tests.engine.conftest import build_context

_FSYNC_S = 0.004
"""By how much a file's way to the disk is slowed down, so that a save lasts even where it costs nothing."""


def build_model() -> torch.nn.Module:
    return torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(12)))


def save_endlessly(root: Path, ready: int) -> None:
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        time.sleep(_FSYNC_S)
        fsync(descriptor)

    os.fsync = slow
    context = build_context(root, {"checkpoint": {"keep": 2}})
    start = choose_start(context)
    hidden = sorted(name for name in os.listdir(context.layout.checkpoints) if name.startswith("."))
    model = build_model()
    start.load_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saver = Saver(context, Strategy(model), optimizer, Precision(), start.state)
    os.write(ready, json.dumps({"start": start.state.step, "hidden": hidden}).encode() + b"\n")
    step = start.state.step
    while True:
        step += 1
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(step)
        saver.approve(step)
        saver.save(TrainState(step=step, samples=step))
        os.write(ready, b"saving\n")


def kill_after(root: Path, saves: int, fraction: float) -> dict:
    parent = os.getpid()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            die_with_parent(parent)
            os.close(reading)
            save_endlessly(root, writing)
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as stream:
        line, began, interval = stream.readline(), time.monotonic(), 0.0
        for _ in range(saves):
            stream.readline()
            interval, began = time.monotonic() - began, time.monotonic()
        time.sleep(fraction * interval)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    return json.loads(line) | {"code": os.waitstatus_to_exitcode(status)}


if __name__ == "__main__":
    die_with_parent(os.getppid())
    torch.set_num_threads(1)
    directory = Path(sys.argv[1])
    print("ready", flush=True)
    for line in sys.stdin:
        number, part = line.split()
        print(json.dumps(kill_after(directory, int(number), float(part))), flush=True)
