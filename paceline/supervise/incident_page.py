"""An incident as a page for people: what, who, since when, the evidence, what everybody was doing, what was done, what to do."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.diagnose.advice import fit_text

_ACTIONS = {
    "none": "nothing but this report",
    "asked": "all ranks were asked to stop at one step, with a checkpoint",
    "killed": "the ranks of this attempt were killed, with everything they had started",
    "restarted": "the ranks of this attempt were killed, and the run is brought back from its newest checkpoint",
}

_FRAMES = 15


def render_page(record: Mapping[str, Any], root: Path, place: str) -> str:
    finding = record["finding"]
    since, returned = record["happened"], record["returned"]
    noticed = returned if returned is not None else record["noticed"]
    lines = [f"# {finding['what']}", ""]
    when = f"noticed {_clock(noticed)}"
    if since is not None:
        when += f", {max(0.0, noticed - since):.1f} s after it began"
    if returned is not None:
        when += f"; it came and went: this is time {record['times']:,}, the first was {_clock(record['noticed'])}"
    lines += [f"Incident {record['id']} of attempt {record['attempt']} in {root}; {when}.", ""]
    lines += [
        f"**Do**: {_advise(record, root)}",
        "",
        f"**Done** (policy {record['policy']}): {_ACTIONS[record['action']]}.",
        "",
    ]
    lines += ["## Evidence", ""]
    lines += [f"- {w['name']} {'agrees' if w['agrees'] else 'disagrees'}: {w['said']}" for w in finding["witnesses"]]
    lines += [f"- {name}: {value:g}" for name, value in finding["numbers"].items()]
    if not finding["witnesses"] and not finding["numbers"]:
        lines += ["- nothing beside the sentence above"]
    lines += ["", "## What every rank was doing", "", *_table(record["ranks"]), ""]
    lines += ["## Stacks", "", *_stacks(record["stacks"], place), ""]
    if record["others"]:
        lines += ["## What holds, too", "", *(f"- {other['what']}" for other in record["others"]), ""]
    return "\n".join(lines)


def _advise(record: Mapping[str, Any], root: Path) -> str:
    """What can still be done, and is not done already: the stacks stand below."""
    is_over = record["action"] in ("killed", "restarted") or record["ended"] is not None
    has_stacks = record["stacks"]["taken_s"] is not None
    do = fit_text(record["finding"]["do"], root, is_living=not is_over, has_stacks=has_stacks)
    do = do or ("look at the stacks below, the odd one first" if has_stacks else "look at what every rank was doing")
    return f"{do}; then start it again" if record["action"] == "killed" else do


def _table(ranks: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["| rank | host | pid | step | phase | for | state | collectives |", "|---|---|---|---|---|---|---|---|"]
    for rank in ranks:
        spent = f"{rank['for_s']:.1f} s" if rank["for_s"] is not None else "?"
        state = str(rank["state"] or "?")
        if rank["exit_code"] is not None:
            state += f" ({rank['exit_code']})"
        counts = f"{rank['completed']} of {rank['enqueued']} done" if rank["enqueued"] is not None else "?"
        cells = [rank["rank"], rank["host"], rank["pid"], rank["step"], rank["phase"], spent, state, counts]
        lines.append("| " + " | ".join("?" if cell is None else str(cell) for cell in cells) + " |")
    return lines


def _stacks(stacks: Mapping[str, Any], place: str) -> list[str]:
    if stacks["taken_s"] is None:
        return ["None were taken."]
    lines = [
        f"Taken in {stacks['taken_s']:.1f} s; whole in {place}/stacks/. Ranks with the same stack are one line.",
        "",
    ]
    for cluster in stacks["clusters"]:
        whose = _ranks(cluster["ranks"])
        odd = ", unlike the others" if cluster["is_odd"] else ""
        frames = cluster["frames"]
        lines += [f"- {whose}{odd}:", *(f"    - {frame}" for frame in frames[:_FRAMES])]
        lines += [f"    - and {len(frames) - _FRAMES} more"] if len(frames) > _FRAMES else []
    lines += [f"- rank {rank}: no stack ({why})" for rank, why in stacks["missing"].items()]
    return lines


def _ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-2, 5`."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][-1] + 1:
            spans[-1][1:] = [rank]
        else:
            spans.append([rank])
    words = ", ".join("-".join(map(str, span)) for span in spans)
    return f"rank {words}" if len(ranks) == 1 else f"ranks {words}"


def _clock(unix: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix))
