"""What `paceline bench telemetry`, `loader` and `scaling` print."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from paceline.cli.asking import waiting
from paceline.errors import UsageError


def run_telemetry(as_json: bool, **options: Any) -> None:
    from paceline.bench.telemetry import measure

    with waiting("training with telemetry on and off, in turn"):
        cost = measure(**({"pairs": options.pop("repeats")} if "repeats" in options else {}), **options)
    summary = cost.summary()
    if as_json:
        print(json.dumps(summary))
        return
    title = f"{summary['parameters']:,} parameters on {summary['world_size']} × {summary['device']}"
    table = Table("part", "µs a call", title=title)
    for name, value in summary["parts_us"].items():
        table.add_row(name, f"{value:,.2f}")
    table.add_section()
    table.add_row("all calls of a step", f"{summary['direct_us']:,.2f}")
    Console().print(table)
    print(
        f"a step without telemetry takes {summary['step_ms']} ms; with it {_percent(summary['share'])} more "
        f"({_percent(summary['share_low'])} to {_percent(summary['share_high'])}, 95 %, {summary['pairs']} pairs of "
        f"{summary['block_steps']} steps); its calls alone are {_percent(summary['direct_share'])}; "
        f"target at most {_percent(summary['target'])}"
    )


def run_loader(as_json: bool, target: str | None, overrides: Sequence[str]) -> None:
    from paceline.bench.loader import measure

    if target is None:
        raise UsageError("the bench 'loader' needs a configuration", "command line", "paceline bench loader sasrec")
    with waiting("training a few steps, then loading without the model"):
        measured = measure(target, overrides)
    if as_json:
        print(json.dumps(measured))
        return
    columns = (
        "loader processes",
        "first batch, ms",
        "samples/s",
        "MB/s delivered",
        "MB/s from disk",
        "of what is needed",
    )
    table = Table(*columns, title=f"{target}, {measured['global_batch']} samples a step, one rank")
    for row in measured["rows"]:
        table.add_row(
            str(row["workers"]),
            f"{row['first_batch_ms']:,.1f}",
            f"{row['samples_per_s']:,.0f}",
            f"{row['delivered_mb_per_s']:,.1f}",
            f"{row['disk_mb_per_s']:,.1f}",
            f"{row['times_needed']:.2f} ×",
        )
    Console().print(table)
    print(
        f"a step that never waits for data needs {measured['samples_per_s']:,.0f} samples/s "
        f"(it takes {measured['step_ms']:.2f} ms, of which {measured['data_ms']:.2f} ms are for data)"
    )


def run_scaling(as_json: bool, ranks: str = "1,2,4", repeats: int = 3) -> None:
    from paceline.bench.scaling import count_runs, measure, summarize

    words = ranks.split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise UsageError(f"--ranks {ranks} is not a list of world sizes", "--ranks", "write it like --ranks 1,2,4")
    sizes, timed = [int(word) for word in words], []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("training on every number of ranks", total=count_runs(sizes, repeats))
        for each in measure(sizes, repeats):
            timed.append(each)
            progress.advance(task)
    rows = summarize(timed)
    if as_json:
        print(json.dumps(rows))
        return
    table = Table("scaling", "ranks", "vectors a rank", "step, ms", "efficiency", "from … to", title=rows[0]["device"])
    for row in rows:
        spread = f"{row['efficiency_lowest']:.3f} … {row['efficiency_highest']:.3f}"
        cells = (row["kind"], str(row["ranks"]), f"{row['tokens']:,}", f"{row['step_ms']:.2f}")
        table.add_row(*cells, f"{row['efficiency']:.3f}", spread)
    Console().print(table)
    print(f"medians of {repeats} repeats; weak: the same batch per rank; strong: the same batch over all ranks")


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
