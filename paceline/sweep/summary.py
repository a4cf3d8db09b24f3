"""summary.md: a sweep's result as a person reads it in a terminal or on a web page of a repository."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.sweep.ranks import TIMES, compared_trials, has_rank_table
from paceline.telemetry.amount import show_amount


def render_summary(described: Mapping[str, Any]) -> str:
    """One page of Markdown; says what is missing where the sweep is not over."""
    objective, costs = described["objective"], described["costs"]
    lines = [f"# Sweep of {described['recipe']}", "", described["sentence"]]
    if described["state"] != "finished":
        why = f" ({described['reason']})" if described["reason"] else ""
        lines += ["", f"State: {described['state']}{why}. What is below is what is known so far."]
    lines += ["", *(f"- {note}" for note in described["notes"])] if described["notes"] else []
    head = ["rank", "case", "verdict", f"{objective['name']} {objective['unit']}".strip(), "interval", "ok", "failed"]
    head += ["step ms p50", "memory GiB", "loss"]
    lines += ["", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for case in described["cases"]:
        name = f"{case['name']} (baseline)" if case["is_baseline"] else case["name"]
        interval = f"{show_amount(case['low'])} to {show_amount(case['high'])}" if case["low"] is not None else ""
        verdict = case["verdict"] if case["is_complete"] else f"{case['verdict']}, incomplete"
        cells = [str(case["rank"]), name, verdict, show_amount(case["value"]), interval]
        cells += [str(case["num_ok"]), str(case["num_failed"])]
        cells += [show_amount(case[key]) for key in ("step_ms_p50", "memory_gib", "final_loss")]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines += _ranks(described) if has_rank_table(described) else []
    failures = [(case["name"], text) for case in described["cases"] for text in case["failures"]]
    if failures:
        lines += ["", "## What failed", "", *(f"- {name}: {' '.join(text.split())}" for name, text in failures)]
    full = costs["full_grid_device_s"]
    against = f"; the full grid ({costs['full_grid_repeats']} repeats) would take about {full:,.0f}" if full else ""
    lines += ["", "## Cost", "", f"{costs['num_trials']} trials, {costs['device_s']:,.0f} device-seconds{against}."]
    if costs["other_device_s"]:
        lines.append(f"{costs['other_device_s']:,.0f} more went into trials that do not count.")
    if costs["num_interrupted"]:
        lines.append(f"{costs['num_interrupted']} of them were interrupted and count for nothing.")
    if described["best"] is not None:
        lines += ["", "## Go on", "", "    paceline train best.yaml"]
    return "\n".join(lines) + "\n"


def _ranks(described: Mapping[str, Any]) -> list[str]:
    """A table per trial, and the verdict under it."""
    lines = ["", "## Ranks", "", "Medians in ms per step; backward is a rank's own, without its wait for the others."]
    trials = compared_trials(described)
    for trial in trials:
        ranks = trial["ranks"]
        lines += ["", f"### {trial['case']}, round {trial['round']}"]
        if ranks["table"]:
            head = ["rank", *(name.removesuffix("_ms").replace("step", "whole step") for name in TIMES), "slower by"]
            lines += ["", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        for each in ranks["table"]:
            cells = [str(each["rank"]), *(show_amount(each[name]) for name in TIMES), f"{each['excess']:+.1%}"]
            lines.append("| " + " | ".join(cells) + " |")
        lines += ["", f"Verdict: {ranks['sentence']}."]
    return lines if trials else [*lines, "", "No trial has told what its ranks did."]
