"""`paceline bench`: the product's own measurements, re-runnable by anyone."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from paceline.cli.arguments import Debug, Json
from paceline.config.nearest import nearest
from paceline.errors import UsageError

BENCHES = {
    "startup": "time to the first step, against a bare torchrun script",
    "checkpoint": "what a save costs the training",
    "sasrec": "an epoch and an evaluation of SASRec, beside rivals",
    "telemetry": "what telemetry costs a step, on against off",
    "loader": "whether the loader of a configuration keeps up with its steps",
    "scaling": "weak and strong efficiency over world sizes",
}
_OPTIONS = {
    "startup": ("repeats", "nproc"),
    "checkpoint": ("repeats", "parameters", "tokens", "every"),
    "sasrec": ("repeats", "data", "epochs", "rival", "set"),
    "telemetry": ("repeats", "nproc", "parameters", "tokens"),
    "loader": (),
    "scaling": ("repeats", "ranks"),
}


def command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="; ".join(f"{k}: {v}" for k, v in BENCHES.items()))],
    target: Annotated[str | None, typer.Argument(metavar="[CONFIG]", help="loader: a recipe or a YAML file.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="loader: changes to the configuration.")
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option("--repeats", min=1, help="Pairs of starts (5) or blocks (40), saves (9), or rounds (1, 3)."),
    ] = None,
    nproc: Annotated[
        int | None, typer.Option("--nproc", min=1, help="startup, telemetry: worker processes (2, 1).")
    ] = None,
    ranks: Annotated[
        str | None, typer.Option("--ranks", metavar="1,2,4", help="scaling: the world sizes (1,2,4).")
    ] = None,
    parameters: Annotated[
        float | None, typer.Option("--parameters", min=1e6, help="checkpoint, telemetry: size of the model (1e7, 1e6).")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            "--tokens",
            min=1,
            help="checkpoint, telemetry: vectors in a batch (512, 256 on a CPU; 8192, 4096 on a GPU).",
        ),
    ] = None,
    every: Annotated[
        int | None, typer.Option("--every", min=2, help="checkpoint: steps between two saves (20).")
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", metavar="FILE", help="sasrec: interactions; without it, generated ones.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", min=1, help="sasrec: measured epochs of each start (3).")
    ] = None,
    rival: Annotated[
        list[str] | None,
        typer.Option(
            "--rival", metavar="COMMAND", help="sasrec: another system's command; may be given several times."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="sasrec: a setting of ours, such as train.graph=false."),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure the product itself on this machine.

    Example: paceline bench checkpoint --parameters 1e7
    """
    if name not in BENCHES:
        near = nearest(name, BENCHES)
        raise UsageError(f"there is no bench {name!r}", "", f"use {near or ', '.join(BENCHES)}")
    values: dict[str, Any] = {
        "repeats": repeats,
        "nproc": nproc,
        "ranks": ranks,
        "parameters": parameters,
        "tokens": tokens,
        "every": every,
        "data": data,
        "epochs": epochs,
        "rival": rival or None,
        "set": settings or None,
    }
    if target is not None and name != "loader":
        raise UsageError(f"{target!r} means nothing to the bench {name!r}", "command line", "leave it out")
    given = {option: value for option, value in values.items() if value is not None}
    for option in given:
        if option not in _OPTIONS[name]:
            what = f"--{option} means nothing to the bench {name!r}"
            takes = ", ".join(f"--{each}" for each in _OPTIONS[name]) or "a configuration alone"
            raise UsageError(what, "command line", f"it takes {takes}")
    if name == "startup":
        _run_startup(as_json, **given)
    elif name == "checkpoint":
        _run_checkpoint(as_json, **given)
    elif name == "sasrec":
        _run_sasrec(as_json, **given)
    else:
        from paceline.cli import bench_watching

        if name == "telemetry":
            bench_watching.run_telemetry(as_json, **given)
        elif name == "loader":
            bench_watching.run_loader(as_json, target, overrides or [])
        else:
            bench_watching.run_scaling(as_json, **given)


def _run_startup(as_json: bool, repeats: int = 5, nproc: int = 2) -> None:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from paceline.bench.startup import measure, summarize

    measured = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting both sides in turn", total=repeats)
        for repeat in measure(repeats, nproc):
            measured.append(repeat)
            progress.advance(task)
    summary = summarize(measured)
    if as_json:
        print(json.dumps(summary))
        return
    table = Table("repeat", "bare torchrun, s", "paceline train, s", "ratio", title="time to the first step")
    for index, repeat in enumerate(measured, start=1):
        ratio = repeat.paceline_s / repeat.bare_s
        table.add_row(str(index), f"{repeat.bare_s:.2f}", f"{repeat.paceline_s:.2f}", f"{ratio:.3f}")
    table.add_section()
    table.add_row("median", f"{summary['bare_s']:.2f}", f"{summary['paceline_s']:.2f}", f"{summary['ratio']:.3f}")
    Console().print(table)
    print(
        f"spread of the ratio {summary['ratio_lowest']} to {summary['ratio_highest']}; target at most {summary['target']}"
    )


def _run_checkpoint(as_json: bool, **options: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    from paceline.bench.checkpoint import measure
    from paceline.cli.asking import waiting

    renamed = {"repeats": "saves", "every": "save_every"}
    with waiting("training with saves"):
        measured = measure(**{renamed.get(option, option): value for option, value in options.items()})
    summary = measured.summary()
    if as_json:
        print(json.dumps(summary))
        return
    title = f"{summary['parameters']:,} parameters, {summary['tokens']:,} vectors a step, {summary['device']}"
    table = Table("save at step", "blocked, ms", "stall, ms", "stall, steps", "on the disk after, s", title=title)
    for stall in measured.stalls:
        steps = f"{stall.stall_ms / measured.step_ms:.2f}"
        table.add_row(
            f"{stall.step}", f"{stall.blocked_ms:.1f}", f"{stall.stall_ms:.1f}", steps, f"{stall.seconds:.2f}"
        )
    table.add_section()
    medians = ("blocked_ms", "stall_ms", "stall_steps", "seconds")
    table.add_row("median", *(f"{summary[name]}" for name in medians))
    Console().print(table)
    print(
        f"a step without a save takes {summary['step_ms']} ms (median of {summary['quiet_steps']}); "
        f"a checkpoint has {summary['gigabytes']} GB; target: a stall of at most {summary['target_steps']:g} step"
    )


def _run_sasrec(as_json: bool, **options: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    from paceline.bench.sasrec import measure, summarize
    from paceline.cli.asking import waiting

    with waiting("training epochs"):
        measured = list(
            measure(
                options.get("data"),
                options.get("repeats", 1),
                options.get("epochs", 3),
                options.get("rival", []),
                options.get("set", []),
            )
        )
    rows = summarize(measured)
    if as_json:
        print(json.dumps(rows))
        return
    table = Table("system", "epoch, s", "from … to, s", "targets a second", "evaluation, s", "we are faster by")
    for row in rows:
        evaluation = "" if row["evaluation_s"] is None else f"{row['evaluation_s']:.3f}"
        spread = f"{row['epoch_s_lowest']:.3f} … {row['epoch_s_highest']:.3f}"
        faster = f"{row['paceline_is_faster']:.2f} ×"
        table.add_row(row["system"], f"{row['epoch_s']:.3f}", spread, f"{row['positions_per_s']:,}", evaluation, faster)
    Console().print(table)
