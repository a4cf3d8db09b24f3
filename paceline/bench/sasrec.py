"""How long an epoch of SASRec takes, and an evaluation of all users over the whole catalogue, beside any rival that can be started.

The shape is that of the usual public implementation: batch 128, length 200, width 50, 2 blocks, one head, BCE with one negative. A rival
is a command whose last line of output is a JSON object with `system`, `epoch_seconds` and `positions_per_epoch`; both sides take turns in
one session, so that a drift of the machine favours none. What is compared is the time per target position, because rivals' epochs differ.
"""

from __future__ import annotations

import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import PacelineError, UsageError
from paceline.telemetry.reader import read_run

_SHAPE = [
    "data.max_length=200",
    "model.width=50",
    "model.blocks=2",
    "model.heads=1",
    "model.feed_forward=50",
    "model.activation=relu",
    "model.dropout=0.2",
    "loss.kind=bce",
    "train.global_batch=128",
    "train.schedule.kind=constant",
    "evaluate.block=512",
    "checkpoint.enabled=false",
]


@dataclass(frozen=True)
class Epochs:
    """What one start of one system measured."""

    system: str
    seconds: list[float]
    """of each epoch; our first one, in which everything is new, is left out"""
    positions: int
    """targets of an epoch"""
    evaluation_s: float | None = None
    """all users, the whole catalogue"""

    @property
    def positions_per_s(self) -> float:
        return self.positions / statistics.median(self.seconds)


def measure(
    data: str | None, repeats: int, epochs: int, rivals: Sequence[str], overrides: Sequence[str]
) -> Iterator[Epochs]:
    """Each system once per repeat, in turn."""
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as scratch:
        for index in range(repeats):
            yield _run_ours(data, epochs, overrides, Path(scratch) / str(index))
            for rival in rivals:
                yield _run_rival(rival)


def summarize(measured: Sequence[Epochs]) -> list[dict[str, Any]]:
    """One row per system: medians over all epochs, and how many times faster than it we are, per position."""
    rows = []
    ours = statistics.median(each.positions_per_s for each in measured if each.system == "paceline")
    for system in dict.fromkeys(each.system for each in measured):
        mine = [each for each in measured if each.system == system]
        seconds = [value for each in mine for value in each.seconds]
        pace = statistics.median(each.positions_per_s for each in mine)
        evaluations = [each.evaluation_s for each in mine if each.evaluation_s is not None]
        rows.append(
            {
                "system": system,
                "epochs": len(seconds),
                "epoch_s": round(statistics.median(seconds), 4),
                "epoch_s_lowest": round(min(seconds), 4),
                "epoch_s_highest": round(max(seconds), 4),
                "positions": mine[0].positions,
                "positions_per_s": round(pace),
                "evaluation_s": round(statistics.median(evaluations), 4) if evaluations else None,
                "paceline_is_faster": round(ours / pace, 2),
            }
        )
    return rows


def _run_ours(data: str | None, epochs: int, overrides: Sequence[str], root: Path) -> Epochs:
    given = {text.partition("=")[0] for text in overrides}
    shape = [text for text in _SHAPE if text.partition("=")[0] not in given]
    settings = [*shape, *([] if data is None else [f"data.path={data}"]), *overrides]
    explained = json.loads(_ask(["explain", "sasrec", *settings, "--json"]))
    steps = explained["follows"]["steps_per_epoch"]["value"]
    length = [f"train.epochs={epochs + 1}", f"telemetry.log_every={steps}"]
    _ask(["train", "sasrec", *settings, *length, "--out", str(root)])
    run = read_run(root)
    if len(run.metrics) < 2:
        raise UsageError("no whole epoch was trained after the first", "--set", "leave train.max_steps out")
    samples = run.events_of("plan")[0]["num_samples"]
    rows = run.metrics[1:]
    positions = round(statistics.median(samples * row["units_per_s"] / row["samples_per_s"] for row in rows))
    seconds = [samples / row["samples_per_s"] for row in rows]
    evaluations = [event["seconds"] for event in run.events_of("evaluation")][1:]
    return Epochs("paceline", seconds, positions, statistics.median(evaluations))


def _ask(arguments: Sequence[str]) -> str:
    """What our own command prints; what it complains about is the caller's to mend."""
    done = subprocess.run([sys.executable, "-m", "paceline", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        what, *rest = done.stderr.strip().splitlines() or ["it said nothing"]
        raise UsageError(f"`paceline {arguments[0]}` refused: {what}", "; ".join(line.strip() for line in rest), "")
    return done.stdout


def _run_rival(command: str) -> Epochs:
    done = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
    try:
        told = json.loads(done.stdout.strip().splitlines()[-1])
        return Epochs(
            told["system"], [float(value) for value in told["epoch_seconds"]], int(told["positions_per_epoch"])
        )
    except (IndexError, KeyError, TypeError, ValueError) as error:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        what = f"the rival did not tell its epochs (exit {done.returncode}): {last}"
        raise PacelineError(
            what, command, "its last line must be JSON: system, epoch_seconds, positions_per_epoch"
        ) from error
