"""`paceline bench attention`: what the child process measured, or what a run's profile shows, as a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.arguments import Debug, Json
from paceline.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table


def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="CONFIG KEY=VALUE", help="A recipe or YAML file, and overrides."),
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Timed windows of each kernel.")] = 9,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Audit a profiled run in place of a CONFIG.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Ask torch which attention it runs for the shapes of a configuration, and time each that it can.

    Example: paceline bench attention sasrec-ml-1m
    """
    if bool(words) == (run is not None):
        do = "paceline bench attention sasrec, or paceline bench attention --run runs/demo"
        raise UsageError("give a CONFIG, or --run RUN: one of them", "command line", do)
    if run is not None:
        _audit(Path(run), as_json)
    else:
        _measure(words or [], as_json, repeats)


def _measure(words: Sequence[str], as_json: bool, repeats: int) -> None:
    from rich.console import Console

    from paceline.cli.asking import ask_worker, waiting

    with waiting("profiling and timing attention"):
        measured = ask_worker(["paceline.bench.attention", *words, "--repeats", str(repeats)])
    if as_json:
        print(json.dumps(measured))
        return
    precision = measured["precision"]
    print(f"{measured['device']}, torch {measured['torch']}, {precision['effective']} ({precision['reason']})")
    for record in measured["policy"]:
        print(tell(record))
        if record["kind"] == "warning" and measured["fallback"] == "error":
            print("attention.fallback=error: a training would end with this reason")
    if not measured["calls"]:
        print("this recipe tells of no attention")
    for call in measured["calls"]:
        if call["own"]:
            print(f"{call['phase']}: {call['shape']}: {' and '.join(call['selected'])} ({call['own']})")
        else:
            Console().print(build_table(call))


def tell(record: Mapping[str, Any]) -> str:
    """A line of the policy."""
    if record["kind"] == "choice":
        return f"{record['about']}: {record['requested']} → {record['effective']} ({record['reason']})"
    return f"{record['kind']}: {record['what']}; {record['why']}"


def build_table(call: Mapping[str, Any]) -> Table:
    """One row per kernel: what it is called, what the profile saw, its times, or why it was refused."""
    from rich.table import Table

    selected = " and ".join(call["selected"]) or "none that is known by name"
    title = f"{call['phase']}: {call['shape']}, {call['type']}\nin force: {selected}"
    table = Table(
        "kernel", "profiled as", "forward, ms", "backward, ms", "refused because", title=title, title_justify="left"
    )
    for row in call["kernels"]:
        ran = " and ".join(row["ran"])
        table.add_row(row["kernel"], ran, _times(row["forward_ms"]), _times(row["backward_ms"]), row["refused"] or "")
    return table


def _times(spread: Mapping[str, float] | None) -> str:
    return f"{spread['median']:.3g} ({spread['lowest']:.3g} … {spread['highest']:.3g})" if spread else ""


def _audit(root: Path, as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from paceline.bench.attention_trace import audit_run

    audit = audit_run(root)
    if as_json:
        print(json.dumps(audit.to_record()))
        return
    table = Table(
        "attention", "for", "calls", "time, ms", "kernels", title="\n".join(audit.traces), title_justify="left"
    )
    table.columns[-1].overflow = "fold"  # a name that is cut off cannot be looked up
    for each in audit.seen:
        names = ", ".join(audit.branches.get(each.backend, ()))
        table.add_row(each.backend, names, f"{each.count:,}", f"{each.time_ms:.3f}", "\n".join(each.names))
    Console().print(table)
    print(f"requested {audit.requested}, promised {audit.promised}: {audit.wrong or 'as promised'}")
