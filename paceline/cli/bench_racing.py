"""`paceline bench racing`: races against full grids, replayed on traces of recorded sweeps."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from paceline.cli.arguments import Debug, Json


def command(
    replays: Annotated[int, typer.Option("--replays", min=1, help="Of each trace and kind of sweep.")] = 20,
    small: Annotated[
        bool, typer.Option("--small", help="8 cells, 6 repeats, 6, 10 and 17 % noise; without --noise and --repeats.")
    ] = False,
    noise: Annotated[
        float, typer.Option("--noise", min=0, help="Relative noise of a trial, accidents apart; 0: as recorded.")
    ] = 0.02,
    repeats: Annotated[
        int | None, typer.Option("--repeats", min=2, help="Of the full grid (as many as the noise asks for).")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the replays.")] = 0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run simulated sweeps both ways, and compare their cost and their winners with the truth.

    Example: paceline bench racing --replays 100
    """
    if small:
        _replay_small(replays, seed, as_json)
        return
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from paceline.bench.racing import TARGET_COST, TARGET_RIGHT, replay_all, summarize
    from paceline.bench.racing_world import KINDS, load_traces
    from paceline.launch.progress import build_console

    done = []
    total = replays * len(load_traces()) * len(KINDS)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("replaying sweeps", total=total)
        for replay in replay_all(replays, seed, noise or None, repeats):
            done.append(replay)
            progress.advance(task)
    rows = summarize(done)
    if as_json:
        print(json.dumps({"seed": seed, "replays": replays, "noise": noise or None, "repeats": repeats, "rows": rows}))
        return
    title = f"36 cells, {f'{noise:.1%} noise' if noise else 'noise as recorded'}, accidents apart, seed {seed}"
    columns = ("trace", "sweep", "grid repeats", "cost", "median", "p90", "right", "share (95 %)")
    table = Table(*columns, "grid right", "agree", "wrong claims", title=title)
    for before, row in zip([None, *rows], rows, strict=False):
        if row["trace"] == "all" and before is not None and before["trace"] != "all":
            table.add_section()
        table.add_row(
            row["trace"],
            row["kind"],
            f"{row['grid_repeats']:g}",
            f"{row['cost']:.3f}",
            f"{row['cost_median']:.3f}",
            f"{row['cost_p90']:.3f}",
            f"{row['right']}/{row['replays']}",
            f"{row['right_share']:.2f} ({row['right_low']:.2f}-{row['right_high']:.2f})",
            f"{row['grid_right_share']:.3f}",
            f"{row['agreed_share']:.3f}",
            f"{row['wrong_claim_share']:.3f}",
        )
    build_console().print(table)
    print(
        f"cost: device-seconds of the race over the grid's, start-ups included (target at most {TARGET_COST}); right: the best "
        f"cell, or within 1 % of it (target at least {TARGET_RIGHT} of gap and of crossing); of null sweeps, where no cell differs: "
        "no case called slower; wrong claims: of replays in which a case was called slower that beats the leader by more than 1 %, "
        "or equals it in a null sweep"
    )


def _replay_small(replays: int, seed: int, as_json: bool) -> None:
    from rich.table import Table

    from paceline.bench.racing_small import CELLS, REPEATS, replay_all_small, summarize_small
    from paceline.launch.progress import build_console

    rows = summarize_small(list(replay_all_small(replays, seed)))
    if as_json:
        print(json.dumps({"seed": seed, "replays": replays, "repeats": REPEATS, "rows": rows}))
        return
    columns = (
        "noise",
        "sweep",
        "cost",
        "median",
        "p90",
        "right",
        "share (95 %)",
        "grid right",
        "behind",
        "grid behind",
    )
    table = Table(*columns, "wrong claims", "rivals", title=f"{CELLS} cells, {REPEATS} repeats, seed {seed}")
    for row in rows:
        table.add_row(
            row["noise"],
            row["kind"],
            *(f"{row[key]:.3f}" for key in ("cost", "cost_median", "cost_p90")),
            f"{row['right']}/{row['replays']}",
            f"{row['right_share']:.2f} ({row['right_low']:.2f}-{row['right_high']:.2f})",
            *(f"{row[key]:.3f}" for key in ("grid_right_share", "race_behind", "grid_behind", "wrong_claim_share")),
            f"{row['rivals']:.1f}",
        )
    build_console().print(table)
    print(
        "right: the best cell, within 1 % of it, or behind by at most a standard error of the grid's differences with the best one "
        "named as not told apart; behind: the choice, on average; rivals: not told apart from the choice, on average"
    )
