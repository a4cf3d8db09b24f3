"""`paceline evaluate`: every split of a trained model again, beside what the run logged at that step. Writes nothing.

The device, the number format and the CPU threads are those that the run's last attempt recorded, so that the digits are the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.cli.arguments import CheckpointWord, Debug, Json, RunDirectory
from paceline.cli.asking import ask_worker, waiting
from paceline.files import finite
from paceline.launch.weights import readable
from paceline.telemetry.reader import Row, Run, read_run


def command(
    run: RunDirectory,
    checkpoint: CheckpointWord = "best",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Evaluate a trained model, and compare with what the run logged.

    Example: paceline evaluate runs/sasrec-1a2b3c4d --checkpoint final
    """
    evaluation = evaluate(run, checkpoint)
    if as_json:
        print(json.dumps(evaluation.to_record(), indent=2, ensure_ascii=False))
    else:
        _print(evaluation)


@dataclass(frozen=True)
class Compared:
    """One metric of one split, now and when the run logged it."""

    split: str
    metric: str
    num_samples: int
    value: float
    logged: float | None
    """None: this step was not logged"""
    logged_samples: int | None

    @property
    def is_equal(self) -> bool | None:
        if self.logged is None:
            return None
        return self.value == self.logged or (math.isnan(self.value) and math.isnan(self.logged))


@dataclass(frozen=True)
class Evaluation:
    """What a worker found, joined with what the run logged."""

    run: Run
    answer: dict[str, Any]
    rows: list[Compared]
    notes: list[str]

    def to_record(self) -> dict[str, Any]:
        known = {name: self.answer[name] for name in ("checkpoint", "step", "device", "precision")}
        rows = [finite(asdict(row)) | {"equal": row.is_equal} for row in self.rows]
        return {"run": str(self.run.layout.root), **known, "notes": self.notes, "rows": rows}


def evaluate(root: Path, checkpoint: str) -> Evaluation:
    """Asks a worker process, under the conditions that the run recorded."""
    with readable(root):
        run = read_run(root)
    recorded = {about: event["effective"] for about, event in run.choices().items()}
    arguments = ["paceline.worker.model", "evaluate", str(root), "--checkpoint", checkpoint]
    device = str(recorded.get("device", "auto")).partition(":")[0]
    arguments += ["--device", device]
    if "precision.mode" in recorded:
        arguments += ["--precision", str(recorded["precision.mode"])]
    with waiting("evaluating"):
        answer = ask_worker(arguments, environment=_threads(run, recorded))
    run = read_run(root)  # once more: a run that is training has logged more by now
    notes = [answer["note"]] if answer["note"] else []
    if answer["run_id"] != run.run.id:
        notes.append(f"this checkpoint is of another run ({answer['run_id']})")
    if device not in ("auto", answer["device"]):
        notes.append(f"the run was on {device}, this is {answer['device']}: the last digits may differ")
    # A checkpoint of another run, given by its path, has nothing to do with what this one logged.
    logged = {row["split"]: row for row in run.validation if row["step"] == answer["step"]}
    rows = list(_compare(answer, logged if answer["run_id"] == run.run.id else {}))
    return Evaluation(run, answer, rows, notes)


def _threads(run: Run, recorded: dict[str, Any]) -> dict[str, str]:
    """The CPU threads of the run's workers: a sum over more of them is added up in another order."""
    name = "OMP_NUM_THREADS"
    threads = recorded.get("launch.omp_threads")
    if threads is None and run.layout.environment.exists():  # under a foreign launcher
        threads = run.environment().get("environment", {}).get(name)
    return {} if threads is None else {name: str(threads)}


def _compare(answer: dict[str, Any], logged: dict[str, Row]) -> Iterator[Compared]:
    for found in answer["splits"]:
        row = logged.get(found["split"], {})
        for metric, value in found["metrics"].items():
            yield Compared(found["split"], metric, found["num_samples"], value, row.get(metric), row.get("num_samples"))


def _print(evaluation: Evaluation) -> None:
    from rich.console import Console
    from rich.table import Table

    answer, console = evaluation.answer, Console(highlight=False, soft_wrap=True)
    for note in evaluation.notes:
        console.print(note, style="yellow", markup=False)
    title = f"{evaluation.run.run.recipe}: step {answer['step']:,}, {answer['device']}, {answer['precision']}"
    table = Table(title=title, title_justify="left")
    for heading in ("split", "metric", "value", "logged", "equal"):
        is_number = heading in ("value", "logged")  # every digit, on a narrow terminal, too
        table.add_column(heading, justify="right" if is_number else "left", min_width=19 if is_number else None)
    for row in evaluation.rows:
        equal = {True: "yes", False: "no", None: ""}[row.is_equal]
        if row.logged_samples not in (None, row.num_samples):
            equal += f" ({row.num_samples:,} samples now, {row.logged_samples:,} then)"
        logged = "" if row.logged is None else repr(row.logged)
        table.add_row(row.split, row.metric, repr(row.value), logged, equal)
    console.print(table)
    console.print(f"checkpoint: {answer['checkpoint']}", markup=False)
