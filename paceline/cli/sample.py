"""`paceline sample`: what a trained language model writes after a prompt."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from paceline.cli.arguments import CheckpointWord, Debug, Json, RunDirectory
from paceline.cli.asking import ask_worker, waiting
from paceline.errors import UsageError
from paceline.launch.weights import readable
from paceline.telemetry.reader import read_run


def command(
    run: RunDirectory,
    prompt: Annotated[str, typer.Option("--prompt", metavar="TEXT", help="Text to go on from.")],
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="How many tokens at most.")] = 100,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0, help="How bold; 0: always the likeliest token.")
    ] = 0.8,
    top: Annotated[
        int | None, typer.Option("--top", min=1, help="Draw among so many of the likeliest tokens only.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Another seed, another text.")] = 0,
    checkpoint: CheckpointWord = "best",
    device: Annotated[
        str, typer.Option("--device", metavar="auto|cpu|cuda", help="Where it is decoded; auto: a GPU if there is one.")
    ] = "auto",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """What a trained language model writes after a prompt, decoded token by token with its caches.

    Example: paceline sample runs/nsa-1a2b3c4d --prompt "The river" --tokens 200
    """
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"there is no device {device!r}", "--device", "auto, cpu or cuda")
    arguments = [
        "--checkpoint",
        checkpoint,
        "--device",
        device,
        "--tokens",
        str(tokens),
        "--temperature",
        str(temperature),
    ]
    arguments += ["--seed", str(seed), *(["--top", str(top)] if top is not None else []), f"--prompt={prompt}"]
    with readable(run):
        read_run(run)  # before torch is waited for
    with waiting("writing"):
        answer = ask_worker(["paceline.worker.model", "sample", str(run), *arguments])
    if as_json:
        print(json.dumps({"run": str(run)} | answer, indent=2, ensure_ascii=False))
        return
    # What a person should know besides goes to standard error: the text alone can be piped.
    for line in filter(None, (answer["note"], _account(answer))):
        print(line, file=sys.stderr)
    print(_printable(answer["prompt"] + answer["text"]))


def _account(answer: dict[str, Any]) -> str:
    return (
        f"step {answer['step']:,}: {answer['num_tokens']:,} tokens after {answer['num_prompt']:,}, "
        f"{answer['bytes_per_token'] / 2**20:.2f} MiB of the caches read for each"
    )


def _printable(text: str) -> str:
    """A model may write anything: what would steer a terminal is not shown."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "�" for letter in text)
