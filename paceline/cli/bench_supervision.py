"""`paceline bench supervision`: what a supervisor costs beside so many ranks."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from paceline.cli.arguments import Debug, Json


def command(
    ranks: Annotated[int, typer.Option("--ranks", min=1, max=1024, help="Ranks on this host.")] = 64,
    seconds: Annotated[float, typer.Option("--seconds", min=1.0, help="How long to measure, each time.")] = 20.0,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="How often.")] = 3,
    step_ms: Annotated[float, typer.Option("--step-ms", min=1.0, help="How long a step takes.")] = 100.0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure the CPU time of a supervisor that watches ranks with pulses.

    Example: paceline bench supervision --ranks 64
    """
    from paceline.bench.supervision import measure
    from paceline.cli.asking import waiting

    with waiting(f"watching {ranks} ranks"):
        summary = measure(ranks, seconds, repeats, step_ms / 1000).summary()
    if as_json:
        print(json.dumps(summary))
        return
    shares = summary["shares"]
    spread = f"median of {len(shares)}, {min(shares):.2%} to {max(shares):.2%}" if len(shares) > 1 else "once"
    print(
        f"{summary['ranks']} ranks: {summary['share']:.2%} of one core over {summary['seconds']:g} s ({spread}; "
        f"target {summary['target']:.0%}), {summary['memory_mib']:g} MiB; its start, not in it: {summary['start_cpu_s']:g} s of CPU"
    )
