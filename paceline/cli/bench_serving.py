"""`paceline bench serving`: what each stage takes under concurrent callers on one core, and what an acceleration gains, as tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli.arguments import Debug, Json
from paceline.telemetry.amount import show_amount


def command(
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="A tenrec run or export; none: the small models, untrained.")
    ] = None,
    retrieval: Annotated[
        Path | None, typer.Option("--retrieval", metavar="RUN", help="For a ranker: the towers that find candidates.")
    ] = None,
    callers: Annotated[int, typer.Option("--callers", min=1, help="Callers at the same time.")] = 4,
    candidates: Annotated[int, typer.Option("--candidates", min=10, help="Candidates of a request.")] = 1000,
    requests: Annotated[int, typer.Option("--requests", min=1, help="Requests of each caller in a round.")] = 50,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds; each figure is their median.")] = 5,
    accelerate: Annotated[
        bool, typer.Option("--accelerate/--no-accelerate", help="Also compile the ranker, in fp32 and bf16.")
    ] = True,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Time every stage of serving under concurrent callers, all on one core of the CPU.

    Example: paceline bench serving runs/ranker --retrieval runs/towers
    """
    from rich.console import Console

    from paceline.cli.asking import ask_worker, waiting

    words = [f"--run={run}"] if run is not None else []
    words += [f"--retrieval={retrieval}"] if retrieval is not None else []
    words += ["--callers", str(callers), "--candidates", str(candidates), "--requests", str(requests)]
    words += ["--rounds", str(rounds), *([] if accelerate else ["--no-accelerate"])]
    with waiting("serving; compiling takes a minute" if accelerate else "serving"):
        measured = ask_worker(["paceline.bench.serving", *words])
    if as_json:
        print(json.dumps(measured))
        return
    model = measured["model"]
    shape = f"{model['mixer']}, {model['layers']} layers × {model['width']}" if model["kind"] == "ranker" else "towers"
    print(f"{shape} ({model['where']}), {measured['items']:,} items, torch {measured['torch']}, one core")
    console = Console()
    console.print(build_stages(measured))
    if measured["acceleration"]:
        console.print(build_acceleration(measured))
    many = measured["many"]
    parts = f"filters {many['filters_ms']:.2f}, diversity {many['diversity_ms']:.2f}"
    print(f"{many['candidates']:,} candidates filtered and diversified: {many['ms']:.2f} ms ({parts})")


def build_stages(measured: dict[str, Any]) -> Any:
    from rich.table import Table

    eager = measured["eager"]
    title = (
        f"{measured['callers']} callers, {measured['candidates']:,} candidates ({eager['scored']:,.0f} left by the filters): ms, "
        f"median of {measured['rounds']} rounds"
    )
    table = Table("stage", "name", "p50", "p90", "p99", title=title)
    for stage in eager["stages"]:
        table.add_row(stage["kind"], stage["name"], *_points(stage))
    table.add_section()
    table.add_row("request", "by the clock on the wall", *_points(eager["total"]))
    table.add_row("", "CPU time: as on an own core", *_points(eager["own"]))
    table.add_row("", f"{show_amount(eager['per_s'])} per s, {eager['cpu_ms']:.1f} ms of CPU each")
    if eager["lost"]:
        table.add_row("", f"{eager['lost']} stages failed or were late")
    return table


def build_acceleration(measured: dict[str, Any]) -> Any:
    from rich.table import Table

    ways = measured["acceleration"]
    table = Table("the ranker compiled", *(each["precision"] for each in ways))
    table.add_row("one request as written, ms", *(f"{each['eager_ms']:.2f}" for each in ways))
    table.add_row("compiled, ms", *(f"{each['fast_ms']:.2f}" for each in ways))
    table.add_row("speed-up", *(f"{each['speed_up']:.2f} ×" for each in ways))
    table.add_row("largest difference", *(_difference(each) for each in ways))
    table.add_row("tolerance", *(f"{each['tolerance']:.1e}" for each in ways))
    table.add_row("same among the ten best", *(f"{each['same_top']:.1%}" for each in ways))
    table.add_row("compiled in, s", *(f"{each['compile_s']:.0f}" for each in ways))
    for name, words in (("total", "requests with it: p50 / p90 / p99"), ("own", "by CPU time")):
        table.add_row(words, *(" / ".join(_points(each[name])) if name in each else "" for each in ways))
    table.add_row("used", *(f"no: {each['why']}" if each["why"] else "yes" for each in ways))
    return table


def _difference(proof: dict[str, Any]) -> str:
    return "none can be told" if proof["max_difference"] is None else f"{proof['max_difference']:.1e}"


def _points(times: dict[str, float]) -> tuple[str, ...]:
    return tuple(f"{times[f'p{point}_ms']:.2f}" for point in (50, 90, 99))
