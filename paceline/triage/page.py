"""What a triage came to, in words: the smallest change with its price, the table of trials, triage.json and triage.md.

describe(outcome)[0]   -> "cured by: no loader processes (data.num_workers=0), at 3.1 % of the throughput …"
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from paceline.config.source import show
from paceline.files import finite, write_json, write_text
from paceline.telemetry.amount import show_amount
from paceline.triage.climb import Outcome, Step, shorten

VERSION = 1


def describe(outcome: Outcome) -> list[str]:
    """The verdict and what to do, for a person."""
    if outcome.state == "not_reproduced":
        return [
            f"not reproduced: the symptom ({outcome.symptom}) did not show in this trial; nothing was changed",
            "do: give more steps (--steps), or another symptom (--symptom)",
        ]
    if outcome.cure is None:
        return [
            f"not cured: no change of the ladder alone takes the symptom ({outcome.symptom}) away",
            "do: the table has every trial's directory; two changes may be needed, or one that the ladder does not have (--ladder)",
        ]
    cure = f"{outcome.cure.rung.name} ({outcome.cure.words})"
    if outcome.state == "uncertain":
        return [
            f"not certain: {cure} took the symptom ({outcome.symptom}) away, but it comes and goes by itself",
            "do: give more steps (--steps), so that it shows every time",
        ]
    return [f"cured by: {cure}, {describe_price(outcome)}", f"why: {outcome.cure.rung.why}"]


def describe_price(outcome: Outcome) -> str:
    price = outcome.price
    if outcome.samples_per_s is None:
        return "its pace is not known: the trial was too short"
    if price is None or outcome.reference is None:
        return f"with {show_amount(outcome.samples_per_s)} samples/s (its price is not known: nothing else was healthy)"
    arithmetic = f"{show_amount(outcome.samples_per_s)} against {show_amount(outcome.reference)} samples/s of {outcome.reference_from}"
    if price < 0.005:
        return f"which costs no throughput ({arithmetic})"
    return f"at {price:.1%} of the throughput ({arithmetic})"


def rows(outcome: Outcome) -> list[tuple[str, str, str, str, str, str]]:
    """change, settings, price class, result, samples/s, what was seen"""
    return [_row(step) for step in outcome.steps]


def write_outcome(outcome: Outcome, out: Path, command: list[str] | None) -> None:
    """triage.json for scripts, triage.md for people."""
    write_json(out / "triage.json", finite(to_record(outcome, command)))
    heads = ("change", "settings", "price", "result", "samples/s", "what was seen")
    lines = [f"# Triage: {outcome.symptom}", "", *describe(outcome), ""]
    if command is not None:
        lines += ["```sh", shlex.join(command), "```", ""]
    lines += [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows(outcome)]
    write_text(out / "triage.md", "\n".join(lines) + "\n")


def to_record(outcome: Outcome, command: list[str] | None) -> dict[str, Any]:
    cure = outcome.cure
    return {
        "v": VERSION,
        "state": outcome.state,
        "symptom": outcome.symptom,
        "cure": None if cure is None else {"name": cure.rung.name, "settings": cure.settings, "why": cure.rung.why},
        "samples_per_s": outcome.samples_per_s,
        "reference": outcome.reference,
        "reference_from": outcome.reference_from,
        "price": outcome.price,
        "command": command,
        "steps": [
            {
                "name": step.name,
                "settings": dict(step.settings),
                "price": step.price,
                "result": step.result,
                "what": step.what,
                "samples_per_s": step.samples_per_s,
                "directory": step.directory,
            }
            for step in outcome.steps
        ],
    }


def _row(step: Step) -> tuple[str, str, str, str, str, str]:
    settings = " ".join(f"{name}={show(value)}" for name, value in step.settings.items())
    pace = show_amount(step.samples_per_s)
    return step.name, settings, step.price, step.result, pace, shorten(step.what)
