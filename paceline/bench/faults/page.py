"""What a matrix came to, for people and for scripts: the table, what was said first, the figures; of plain runs their own table.

summary = summarize_matrix(seed, records, asked=150)     -> {"seed": 7, "all": {…}, "rows": […], "confusion": {…}, "wrong": […]}
show_matrix(summary, console)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.bench.faults.score import NOTHING, Score, confusion, score, summarize, summarize_all

if TYPE_CHECKING:
    from rich.console import Console


def summarize_matrix(seed: int, records: Sequence[Mapping[str, Any]], asked: int) -> dict[str, Any]:
    """Plain data; `asked`: how many cells there are to be."""
    scores = [score(record) for record in records]
    return {
        "seed": seed,
        "asked": asked,
        "done": len(scores),
        "all": summarize_all(scores),
        "rows": summarize(scores),
        "confusion": {name: dict(counts) for name, counts in confusion(scores).items()},
        "wrong": [f"{each.cell}: {each.why or ', '.join(each.alarms)}" for each in scores if not each.is_right],
    }


def show_matrix(summary: Mapping[str, Any], console: Console) -> None:
    from rich.table import Table

    shown = Table("fault", "runs", "noticed", "in time", "median", "most", "rank", "cause", "alarms", "stacks")
    for row in summary["rows"]:
        shown.add_row(*_cells(row))
    console.print(shown)
    rows = summary["confusion"]
    said = {kind for counts in rows.values() for kind in counts}
    columns = [*sorted(said - {NOTHING}), *(said & {NOTHING})]
    first = Table("fault", *columns, title="what was said first")
    for name, counts in rows.items():
        first.add_row(name, *(str(counts.get(kind, "")) for kind in columns))
    console.print(first)
    for line in [_figures(summary), *summary["wrong"]]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def line_of(record: Mapping[str, Any]) -> str:
    """A cell when it is done."""
    each, cell = score(record), record["cell"]
    where = f"rank {cell['rank']} of {cell['nproc']}, step {cell['step']}, {record.get('seconds', 0):.0f} s"
    latency = f"{each.latency_s:.1f} s" if each.latency_s is not None else "-"
    verdict = "right" if each.is_right else "WRONG" if each.is_valid else "not valid"
    said = f"{verdict}: {each.said} after {latency}"
    return "  ".join(filter(None, [each.cell, where, said, _why(each)]))


def summarize_plain(seed: int, records: Sequence[Mapping[str, Any]], asked: int) -> dict[str, Any]:
    kept = ("cell", "status", "noticed_s", "rank", "exit_code")
    shown = [{name: record.get(name) for name in kept} for record in records]
    return {"seed": seed, "asked": asked, "done": len(shown), "records": shown}


def show_plain(summary: Mapping[str, Any], console: Console) -> None:
    from rich.table import Table

    title = "plain torchrun, capped at 120 s"
    table = Table("fault", "ranks", "guilty", "seconds until it ended", "named", title=title)
    for record in summary["records"]:
        cell, seconds = record["cell"], record["noticed_s"]
        ended = "-" if seconds is None else f"{seconds:.1f}"
        named = "-" if record["rank"] is None else str(record["rank"])
        table.add_row(cell["fault"], str(cell["nproc"]), str(cell["rank"]), ended, named)
    console.print(table)
    console.print(f"{summary['done']} of {summary['asked']} cells; seed {summary['seed']}")


def plain_line_of(record: Mapping[str, Any]) -> str:
    cell, seconds = record["cell"], record["noticed_s"]
    said = record["status"] if seconds is None else f"ended after {seconds:.1f} s, rank {record['rank']} named"
    return f"{cell['fault']}  rank {cell['rank']} of {cell['nproc']}: {said}"


def _cells(row: Mapping[str, Any]) -> list[str]:
    is_clean, unit = row["is_clean"], row["latency_unit"]
    return [
        row["fault"],
        f"{row['runs']}" + (f" (+{row['invalid']} not valid)" if row["invalid"] else ""),
        "" if is_clean else f"{row['noticed']}",
        "" if is_clean else f"{row['in_time']}",
        "" if row["latency"] is None else f"{row['latency']:.1f} {unit}",
        "" if row["latency_most"] is None else f"{row['latency_most']:.1f} {unit}",
        f"{row['culprit_right']}/{row['culprit_asked']}" if row["culprit_asked"] else "",
        "" if is_clean else f"{row['cause_right']}",
        f"{row['alarms']}",
        f"{row['stacks_right']}/{row['stacks_asked']}" if row["stacks_asked"] else "",
    ]


def _figures(summary: Mapping[str, Any]) -> str:
    whole = summary["all"]
    return (
        f"{summary['done']} of {summary['asked']} cells; {whole['faulty']} faulty runs: {whole['noticed']} noticed, "
        f"{whole['in_time']} in time, rank right {whole['culprit_right']}/{whole['culprit_asked']}, cause right "
        f"{whole['cause_right']}/{whole['faulty']}, stacks of all within 5 s {whole['stacks_right']}/{whole['stacks_asked']}; "
        f"{whole['clean']} clean runs, {whole['clean_with_alarm']} with an alarm; alarms before a fault {whole['alarms_before']}; "
        f"runs in which an innocent rank was called a straggler {whole['straggler_alarms']}; not valid {whole['invalid']}; "
        f"seed {summary['seed']}"
    )


def _why(each: Score) -> str:
    return each.why or ", ".join(each.alarms)
