"""What the ranks of each trial did, beside each other: their phases, and whether one of them slows the others down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from paceline.reports.amounts import counted, figure, text
from paceline.reports.page import Note, Part, Table, Tone
from paceline.reports.records import objects_in
from paceline.reports.sweep_facts import SWEEP_FILE, SweepFacts, TrialFacts
from paceline.telemetry.numbers import is_finite

_COLUMNS = {
    "whole step ms": "step_ms",
    "data ms": "data_ms",
    "forward ms": "forward_ms",
    "own backward ms": "backward_ms",
    "wait for others ms": "wait_ms",
    "optimizer ms": "optimizer_ms",
}
_SLOWER = "slower by"
_TONES: dict[str, Tone] = {"even": "good", "slow": "bad", "open": "warning", "unknown": "warning"}


def ranks(facts: SweepFacts) -> Iterator[Part]:
    """A table per trial, in the order of the cases, each with its verdict."""
    places = {case.name: place for place, case in enumerate(facts.cases)}
    known = [trial for trial in facts.trials if trial.counts and isinstance(trial.record.get("ranks"), Mapping)]
    for trial in sorted(known, key=lambda trial: places.get(trial.case, len(places))):
        yield from _trial(trial, trial.record["ranks"])
    if not known:
        yield Note("No trial has told what its ranks did.")
        return
    yield Note(
        "Medians over windows after the warm-up, per step. All ranks take equally long over a step: who is slower waits less for the others."
    )


def _trial(trial: TrialFacts, record: Mapping[str, Any]) -> Iterator[Part]:
    name = f"{trial.case}, round {text(trial.record.get('round'))}"
    rows = objects_in(record, "table", SWEEP_FILE, [])
    if rows:
        columns = ("rank", *_COLUMNS, _SLOWER)
        windows = record.get("num_windows")
        caption = f"{name}: {counted(windows, 'window')}" if isinstance(windows, int) else name
        yield Table(columns, [_row(each) for each in rows], frozenset(columns), caption)
    verdict = text(record.get("verdict"))
    yield Note(f"{name}: {text(record.get('sentence'))}.", _TONES.get(verdict, "plain"))


def _row(each: Mapping[str, Any]) -> list[str]:
    times = [figure(value) if is_finite(value := each.get(name)) else "" for name in _COLUMNS.values()]
    excess = each.get("excess")
    return [text(each.get("rank")), *times, f"{excess:+.1%}" if is_finite(excess) else ""]
