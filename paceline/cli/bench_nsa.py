"""`paceline bench nsa`: what each stage of native sparse attention takes at each length, dense attention beside it, and one more token, as tables."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from paceline.cli.arguments import Debug, Json
from paceline.cli.whole_table import print_whole
from paceline.errors import UsageError

_TITLES = {
    "compress": "compress (keys and values)",
    "compressed": "compressed",
    "select": "select",
    "selected": "selected",
    "window": "window",
    "mix": "mix by gates",
    "sparse": "all of them",
    "flash": "dense, flash",
    "cudnn": "dense, cuDNN",
    "layer": "layer, sparse",
    "layer_flash": "layer, dense, flash",
    "layer_cudnn": "layer, dense, cuDNN",
}
_DECODING_TITLES = {
    "attention": "attention, sparse",
    "attention_launched": "attention, sparse, launched",
    "attention_dense": "attention, dense",
    "attention_dense_launched": "attention, dense, launched",
    "model": "model, sparse",
    "model_launched": "model, sparse, launched",
    "model_dense": "model, dense",
    "model_dense_launched": "model, dense, launched",
}
"""launched: kernel by kernel, by the host; else as one graph, on a GPU"""


def command(
    lengths: Annotated[
        list[int] | None,
        typer.Option(
            "--length",
            metavar="N",
            min=1,
            max=2**31 - 1,
            help="Tokens of the row; again for more (2048 to 131072; on a CPU 256 to 2048).",
        ),
    ] = None,
    heads: Annotated[int, typer.Option("--heads", min=1, help="Attention heads.")] = 12,
    groups: Annotated[int, typer.Option("--groups", min=1, help="Groups that share keys, values and blocks.")] = 2,
    width: Annotated[int, typer.Option("--width", min=2, help="Width of a head.")] = 64,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Timed calls of each stage, or tile.")] = 5,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="Find the fastest tiles of the kernels instead, for later trainings (8192 tokens if none given).",
        ),
    ] = False,
    decode: Annotated[
        bool, typer.Option("--decode", help="Time one more token of a text of each length as well, sparse and dense.")
    ] = False,
    rows: Annotated[
        int | None, typer.Option("--rows", min=1, help="With --tune: rows at a time, a training's micro-batch (1).")
    ] = None,
    precision: Annotated[
        str | None, typer.Option("--precision", metavar="bf16|fp16", help="With --tune: of the training (bf16).")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Time each stage of native sparse attention, forward and backward, beside dense attention, and find the break-even.

    Example: paceline bench nsa --length 8192 --length 65536
    """
    from paceline.cli.asking import ask_worker, waiting

    if heads % groups:
        raise UsageError(f"{heads} heads cannot be shared out among {groups} groups", "--heads, --groups", "--groups 1")
    if width % 2:
        raise UsageError(f"heads {width} wide: RoPE turns coordinates in pairs", "--width", f"--width {width + 1}")
    if precision not in (None, "bf16", "fp16"):
        raise UsageError(f"--precision {precision} has no tiles to tune", "--precision", "--precision bf16, or fp16")
    if tune and decode:
        raise UsageError("--tune and --decode are two things", "paceline bench nsa", "one after the other")
    if not tune and (rows or precision):
        raise UsageError("--rows and --precision are for --tune", "paceline bench nsa", "add --tune")
    asked = [word for length in dict.fromkeys(lengths or ()) for word in ("--length", str(length))]
    shape = ["--heads", str(heads), "--groups", str(groups), "--width", str(width), "--repeats", str(repeats)]
    if tune:
        more = ["--rows", str(rows or 1), "--precision", precision or "bf16"]
        with waiting("compiling and timing tiles"):
            tuned = ask_worker(["paceline.bench.nsa_tiles", *asked, *shape, *more])
        print_tuned(tuned, as_json)
        return
    with waiting("timing each stage"):
        measured = ask_worker(["paceline.bench.nsa", *asked, *shape, *(["--decode"] if decode else [])])
    if as_json:
        print(json.dumps(measured))
        return
    print(f"{measured['device']}, torch {measured['torch']}; path {measured['path']}: {measured['reason']}")
    print_whole(build_table(measured))
    if decode:
        print_whole(build_decoding_table(measured))
    for told in list_refusals(measured["rows"]):
        print(told)
    for dense, length in measured["break_even"].items():
        told = f"from {length:,} tokens on (of those measured)" if length else "at none of these lengths"
        print(f"faster than {_TITLES[f'layer_{dense}']}: {told}")


def print_tuned(tuned: dict[str, Any], as_json: bool) -> None:
    from rich.table import Table

    if as_json:
        print(json.dumps(tuned))
        return
    for case in tuned["cases"]:
        table = Table("kernel", "built-in", "ms", "fastest", "ms", title=case["about"])
        for row in case["kernels"]:
            built_in, fastest = (_say_ms(row[name]) for name in ("built_in_ms", "fastest_ms"))
            table.add_row(row["kernel"], row["built_in"], built_in, row["fastest"], fastest)
        print(f"{case['place']}; ms of the forward or the backward that the kernel is part of")
        print_whole(table)
        measured, tried = (sum(row[name] for row in case["kernels"]) for name in ("measured", "tried"))
        print(f"{measured} of {tried} candidates could be timed")
        for refused in case["refused"]:
            print(f"refused: {refused}")
        print(f"kept in {case['file']}" if case["file"] else f"not kept: {case['problem']}")


def _say_ms(ms: float | None) -> str:
    return "no fit" if ms is None else f"{ms:.3f}"


def build_table(measured: dict[str, Any]) -> Any:
    from rich.table import Table

    title = f"one layer, {measured['heads']} heads in {measured['groups']} groups, {measured['width']} wide: forward / backward, ms"
    rows = measured["rows"]
    table = Table("stage", *(f"{row['length']:,}" for row in rows), title=title)
    for name, words in _TITLES.items():
        if name.endswith(("flash", "cudnn")) and name.removeprefix("layer_") not in measured["break_even"]:
            continue
        table.add_row(words, *(_cell(row, name) for row in rows))
    return table


def list_refusals(rows: list[dict[str, Any]]) -> list[str]:
    """Which backend of dense attention is not to be had at which lengths, and torch's reason."""
    lengths: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for refused in row["dense_refused"].items():
            lengths.setdefault(refused, []).append(f"{row['length']:,}")
    return [
        f"not to be had, {_TITLES[backend]}, at {', '.join(where)}: {reason}"
        for (backend, reason), where in lengths.items()
    ]


def build_decoding_table(measured: dict[str, Any]) -> Any:
    from rich.table import Table

    rows = measured["rows"]
    table = Table(
        "texts",
        "what",
        *(f"{row['length']:,}" for row in rows),
        title="one more token, µs: attention of one layer, model of 12",
    )
    for texts in rows[0]["decoding"]:
        for name, words in _DECODING_TITLES.items():
            cells = [_decoding_cell(row["decoding"][texts], name) for row in rows]
            if any(cells):
                table.add_row(texts, words, *cells)
    return table


def _decoding_cell(decoding: dict[str, Any], name: str) -> str:
    """Empty where there is no such figure here."""
    if decoding["refused"]:
        return "no memory"
    if name not in decoding:
        return ""
    told = f" {decoding['backend']}" if name == "attention_dense" else ""
    return f"{decoding[name]:,.1f}{told}"


def _cell(row: dict[str, Any], name: str) -> str:
    if row["refused"]:
        return "no memory"
    if name not in row["times"]:
        return "-"
    times = row["times"][name]
    return f"{times['forward_ms']:.2f}" + (f" / {times['backward_ms']:.2f}" if times["backward_ms"] else "")
