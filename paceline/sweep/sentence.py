"""The result of a sweep in one sentence, which claims what is decided and no more.

say_result(cases, best, objective, is_ended=True)   -> "micro_batch=8 wins with 1,200 samples/s; tied with it: micro_batch=16."
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.telemetry.amount import show_amount


def say_result(
    cases: Sequence[Mapping[str, Any]],
    best: Mapping[str, Any] | None,
    objective: Mapping[str, str],
    *,
    is_ended: bool,
) -> str:
    """`cases` as sweep.json has them, `best` the one that won or leads; `is_ended`: its race was run to the end."""
    if best is None:
        statuses = sorted({case["verdict"] for case in cases if case["num_trials"]})
        return f"No case has a result ({', '.join(statuses)})." if statuses else "No trial has ended yet."
    amount = f"{show_amount(best['value'])} {objective['unit'] or objective['name']}"
    has_won = best["verdict"] == "winner" and is_ended
    does = "wins" if has_won else "leads" if is_ended else "leads so far"
    text = f"{best['name']} {does} with {amount}"
    base = next(case for case in cases if case["is_baseline"])
    if base is not best and base["value"]:
        share = (best["value"] - base["value"]) / abs(base["value"])
        text += f", {share:+.1%} against the baseline {base['name']} ({show_amount(base['value'])})"
    tied = [case["name"] for case in cases if case["verdict"] == "tied"]
    if tied:
        shown = ", ".join(tied[:3]) + (f" and {len(tied) - 3} more" if len(tied) > 3 else "")
        # Some of them may be tied for certain; their evidence says which.
        text += f"; {'tied with' if has_won else 'not told apart from'} it: {shown}"
    open_cases = sum(case["verdict"] == "undecided" for case in cases)
    if open_cases:
        text += f"; {open_cases} of {len(cases)} cases {'is' if open_cases == 1 else 'are'} undecided"
    return text + "."
