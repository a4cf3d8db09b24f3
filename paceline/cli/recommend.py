"""`paceline recommend`: what a trained model would show next to a user of its data, or after a history that is typed in."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from paceline.cli.arguments import CheckpointWord, Debug, Json, RunDirectory
from paceline.cli.asking import ask_worker, waiting
from paceline.errors import UsageError
from paceline.launch.weights import readable
from paceline.telemetry.exports import RECORD, read_export
from paceline.telemetry.reader import read_run

_SHOWN = 5
"""events of the history that a person sees"""


def command(
    run: RunDirectory,
    user: Annotated[
        str | None, typer.Option("--user", metavar="ID", help="A user, by the name that the data has for it.")
    ] = None,
    history: Annotated[
        str | None,
        typer.Option("--history", metavar="1,2,3", help="Items, oldest first, by the data's names for them."),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="How many items.")] = 10,
    checkpoint: CheckpointWord = "best",
    keep_seen: Annotated[
        bool, typer.Option("--keep-seen", help="Also what is in the history already may be shown again.")
    ] = False,
    retrieval: Annotated[
        str | None,
        typer.Option(
            "--retrieval", metavar="RUN", help="For a ranker: the towers that find candidates (evaluate.retrieval)."
        ),
    ] = None,
    candidates: Annotated[
        int | None, typer.Option("--candidates", min=1, help="For tenrec: how many are filtered and ranked (1000).")
    ] = None,
    block: Annotated[
        str | None, typer.Option("--block", metavar="1,2,3", help="For tenrec: items that are not shown.")
    ] = None,
    block_category: Annotated[
        str | None, typer.Option("--block-category", metavar="1,2", help="For tenrec: categories that are not shown.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="For tenrec: what each stage did, removed and took.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """What a trained model would show a user next, with titles where the data has them. RUN may be an export.

    Example: paceline recommend runs/sasrec-1a2b3c4d --user 17 --top 5
    Example: paceline recommend runs/tenrec-1a2b3c4d --retrieval runs/towers --user 17 --explain
    """
    arguments = ["--checkpoint", checkpoint, "--top", str(top), *_subject(user, history)]
    arguments += ["--keep-seen"] if keep_seen else []
    arguments += _pipeline(retrieval, candidates, block, block_category)
    with readable(run):  # before torch is waited for
        read_export(run) if (run / RECORD).exists() else read_run(run)
    with waiting("recommending"):
        answer = ask_worker(["paceline.worker.model", "recommend", str(run), *arguments])
    stages = answer.pop("stages", None)
    if explain and stages is None:
        what = "this recipe is served without a pipeline: there are no stages to explain"
        raise UsageError(what, f"{run} and --explain", "leave --explain out")
    answer |= {"stages": stages} if explain else {}
    if as_json:
        print(json.dumps({"run": str(run)} | answer, indent=2, ensure_ascii=False))
    elif sys.stdout.isatty():
        _print_tables(answer)
    else:
        _print_plain(answer)


def _subject(user: str | None, history: str | None) -> list[str]:
    """For whom, as the worker's arguments; joined by `=`, so that a name may begin with a dash."""
    if (user is None) == (history is None):
        what = "two subjects were given" if user is not None else "for whom?"
        raise UsageError(what, "command line", "give --user ID, or --history 1,2,3")
    if history is None:
        return [f"--user={user}"]
    return [f"--history={json.dumps(_words(history, '--history'))}"]


def _pipeline(
    retrieval: str | None, candidates: int | None, block: str | None, block_category: str | None
) -> list[str]:
    """What is said to the pipeline, as the worker's arguments; only what was given."""
    said: dict[str, Any] = {"retrieval": retrieval, "candidates": candidates}
    said |= {"block": _words(block, "--block") if block is not None else None}
    if block_category is not None:
        words = _words(block_category, "--block-category")
        if not all(word.isdecimal() and word.isascii() and len(word) < 20 for word in words):
            what = f"--block-category {block_category} is not a list of categories"
            raise UsageError(what, "command line", "give their numbers: --block-category 3,17")
        said["block_category"] = [int(word) for word in words]
    given = {name: value for name, value in said.items() if value is not None}
    return [f"--pipeline={json.dumps(given)}"] if given else []


def _words(text: str, option: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        what = f"{option} {text!r} names an item without a name"
        raise UsageError(what, "command line", f"give names, separated by commas: {option} 1,2,3")
    return words


def _title(answer: dict[str, Any]) -> str:
    events = f"{len(answer['history']):,} events"
    whose = f"a history of {events}" if answer["user"] is None else f"user {_printable(answer['user'])}, {events}"
    return f"step {answer['step']:,}: {whose}"


def _cells(row: dict[str, Any]) -> tuple[str, str, str]:
    score = "" if row["score"] is None else f"{row['score']:.4f}"
    return _printable(row["item"]), _printable(row["title"] or ""), score


def _printable(text: str) -> str:
    """Names come from a data file: what would steer a terminal is not shown."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def _print_tables(answer: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if answer["note"]:
        console.print(answer["note"], style="yellow", markup=False)
    console.print(_title(answer), markup=False)
    past, shown = answer["history"], answer["items"]
    latest = past[-_SHOWN:]
    # As Text: a title such as "[red]" is no markup.
    before = Table("latest", "item", "title")
    for number, row in enumerate(latest, start=len(past) - len(latest) + 1):
        item, title, _ = _cells(row)
        before.add_row(str(number), Text(item), Text(title))
    after = Table("recommended", "item", "title", "score")
    for number, row in enumerate(shown, start=1):
        after.add_row(str(number), *(Text(cell) for cell in _cells(row)))
    console.print(before, after)
    if "stages" in answer:
        table = Table("stage", "name", "status", "ms", "candidates", "note", title=f"{answer['ms']:.1f} ms")
        for stage in answer["stages"]:
            table.add_row(*(Text(cell) for cell in _stage_cells(stage)))
        console.print(table)


def _stage_cells(stage: dict[str, Any]) -> tuple[str, ...]:
    """How many a source found, a filter removed, another stage looked at."""
    count = "" if stage["count"] is None else f"{stage['count']:,}"
    signs = {"source": "+", "filter": "-"}
    sign = signs.get(stage["kind"], "") if stage["count"] else ""
    return stage["kind"], stage["name"], stage["status"], f"{stage['ms']:.2f}", sign + count, stage["note"]


def _print_plain(answer: dict[str, Any]) -> None:
    """Tabs between columns, one row per recommended item; what a person should know besides goes to standard error."""
    if answer["note"]:
        print(answer["note"], file=sys.stderr)
    print(_title(answer), file=sys.stderr)
    for row in answer["items"]:
        item, title, score = _cells(row)
        print(item, score, title, sep="\t")
    for stage in answer.get("stages", ()):
        print(*_stage_cells(stage), sep="\t", file=sys.stderr)
