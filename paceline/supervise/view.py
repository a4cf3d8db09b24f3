"""A glance at a running attempt for a person: a table for a terminal, one line elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from paceline.launch.duration import show_duration
from paceline.telemetry.amount import show_amount

_STYLES = {"critical": "red", "warning": "yellow", "note": "dim"}
_WIDTHS = {"phase": 10, "for": 7, "steps/s": 7, "wait": 9, "memory": 9, "process": 8}
"""at least, so that the columns stay where they are from one look to the next"""


def render_table(glance: Mapping[str, Any], height: int | None = None) -> Group:
    """What is wrong, and one row per rank; where there are not so many rows, of those that matter most."""
    findings = [
        Text(f"{finding['kind'].replace('_', ' ')}: {finding['what']}", style=_STYLES[finding["severity"]])
        for finding in glance["findings"]
    ]
    table = Table(title=None, box=None, pad_edge=False, header_style="bold")
    has_hosts = len({rank["host"] for rank in glance["ranks"]}) > 1
    hosts = ("host",) if has_hosts else ()
    for name in ("rank", *hosts, "step", "phase", "for", "steps/s", "wait", "memory", "GPU", "process"):
        justify: Any = "left" if name in ("host", "phase", "process") else "right"
        table.add_column(name, justify=justify, min_width=_WIDTHS.get(name))
    room = max(4, height - 4 - 3 * len(findings)) if height is not None else None
    shown = _choose(glance, room)
    for rank in shown:
        number, *cells = _cells(rank)
        host = [str(rank["host"])] if has_hosts else []
        table.add_row(number, *host, *cells, style=None if rank["state"] != "stopped" else "red")
    left = len(glance["ranks"]) - len(shown)
    others = "1 more rank, not" if left == 1 else f"{left} more ranks, none of them"
    more = [Text(f"and {others} behind these", style="dim")] if left else []
    return Group(Text(_head(glance)), *findings, table, *more)


def _choose(glance: Mapping[str, Any], room: int | None) -> list[Mapping[str, Any]]:
    """Those that are named, then those that are behind, then those that wait least."""
    ranks = glance["ranks"]
    if room is None or len(ranks) <= room:
        return list(ranks)
    named = {finding.get("rank") for finding in glance["findings"]}

    def weigh(rank: Mapping[str, Any]) -> tuple[bool, float, float]:
        wait_ms = rank["wait_ms"] if rank["wait_ms"] is not None else float("inf")
        return rank["rank"] not in named, rank["step"] if rank["step"] is not None else -1, wait_ms

    return sorted(sorted(ranks, key=weigh)[:room], key=lambda rank: int(rank["rank"]))


def render_line(glance: Mapping[str, Any]) -> str:
    """One line: where all of it is, and who is elsewhere."""
    places: dict[str, list[int]] = {}
    nowhere = (
        "no pulse yet" if glance["step"] is None else "no pulse"
    )  # a script that knows nothing of us never has one
    for rank in glance["ranks"]:
        where = f"{rank['phase']} of step {rank['step']}" if rank["step"] is not None else nowhere
        places.setdefault(where, []).append(rank["rank"])
    words = [_head(glance)]
    if len(places) > 1:
        words += [f"rank {','.join(map(str, ranks))}: {where}" for where, ranks in places.items()]
    else:
        words += list(places)
    return "  ".join(words)


def _head(glance: Mapping[str, Any]) -> str:
    step, total = glance["step"], glance["total_steps"]
    words = [f"attempt {glance['attempt']}"]
    words.append("starting" if step is None else f"step {step:,}" + (f"/{total:,}" if total is not None else ""))
    if glance["steps_per_s"]:
        words.append(f"{show_amount(glance['steps_per_s'])} steps/s")
    if glance["left_s"] is not None:
        words.append(f"{show_duration(glance['left_s'])} left")
    return "  ".join(words)


def _cells(rank: Mapping[str, Any]) -> list[str]:
    gpu = rank["gpu"] or {}
    shown = [f"{gpu['util']:.0f} %" if gpu.get("util") is not None else ""]
    shown += [f"{gpu['clock_mhz']:.0f} MHz" if gpu.get("clock_mhz") is not None else ""]
    shown += [f"{gpu['power_w']:.0f} W" if gpu.get("power_w") is not None else ""]
    process = str(rank["state"] or "?")
    if rank["exit_code"] is not None:
        process += f" ({rank['exit_code']})"
    return [
        str(rank["rank"]),
        f"{rank['step']:,}" if rank["step"] is not None else "-",
        rank["phase"] or "-",
        f"{rank['for_s']:.1f} s" if rank["for_s"] is not None else "-",
        show_amount(rank["steps_per_s"]) or "-",
        f"{rank['wait_ms']:.1f} ms" if rank["wait_ms"] is not None else "-",
        f"{rank['memory_gib']:.2f} GiB" if rank["memory_gib"] is not None else "-",
        " ".join(filter(None, shown)) or "-",
        process,
    ]
