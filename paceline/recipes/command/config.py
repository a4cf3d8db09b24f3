"""What a command configuration may say: the script's words, its parameters, how its lines are read. No torch, no numpy.

recipe: command
command:
  argv: [python, train.py, "--batch={params.batch}"]
  params: {batch: 32}
  metrics: {step: 'iter (\\d+)', loss: 'loss ([\\d.]+)'}
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from paceline.config import sections
from paceline.config.sections import IDENTITY, Bool, Section, key
from paceline.errors import DataError, Problem, UsageError
from paceline.files import sha256_of
from paceline.recipes.command.words import check_metrics, check_words, render_argv
from paceline.workload import Foreign, Recipe, Workload

RUNNER = "paceline.recipes.command.runner"
_HEEDED = (
    *("recipe", "run.name", "run.out", "run.seed", "launch.", "command.", "supervise."),
    *("train.max_steps", "stop.max_hours", "telemetry.log_every"),
)
"""What the launcher and the runner read; a script takes what its command line names."""
_UNSEEN = ("supervise.compile_limit_s", "supervise.evaluate_limit_s", "supervise.checkpoint_limit_s")


class Command(Section):
    argv: list[str] = key(
        [], "The script's command line, word by word; {params.NAME} and {run.seed} stand for values.", IDENTITY
    )
    params: dict[str, Bool | int | float | str] = key({}, "Parameters of the script, for its command line.", IDENTITY)
    metrics: dict[str, str] = key(
        {},
        "Name to regular expression with one group: step, loss, step_ms and other columns of metrics.csv, or a metric of one's own.",
    )
    samples_per_step: Annotated[int, Field(ge=1)] | str | None = key(
        None, "Samples of a step: a number, or a parameter such as {params.batch}; null: steps are counted."
    )
    files: list[str] = key(
        [], "Data files of the script: with other content it is another run. What argv names counts by itself."
    )
    stop_grace_s: float = key(10, "Seconds that the script has to end itself when asked, before it is killed.", gt=0)


class CommandConfig(sections.RunConfig):
    recipe: Literal["command"] = key(..., "Which recipe trains.", IDENTITY)
    command: Command = key(Command(), "The script.")


def check(config: CommandConfig) -> list[Problem]:
    if not config.command.argv:
        do = 'write argv: [python, train.py, "--batch={params.batch}"]'
        return [Problem("command.argv is empty: nothing says what to run", "command.argv", do)]
    return [*check_words(config), *check_metrics(config)]


def find_idle(config: CommandConfig, given: Collection[str]) -> Iterator[tuple[str, str]]:
    """Everything that only a worker of ours would read, and that no word of the script names."""
    words = " ".join(config.command.argv)
    for name in sorted(given):
        if name in _UNSEEN:
            yield name, "recipe=command: what a script is doing cannot be seen from outside"
        elif not name.startswith(_HEEDED) and f"{{{name}}}" not in words:
            yield name, "recipe=command: the script does not read it (a parameter goes into command.params)"


def identify_data(config: CommandConfig) -> str:
    """A digest of the files that the script is said to read."""
    digest = hashlib.sha256()
    for name in config.command.files:
        if not Path(name).is_file():
            raise DataError(f"there is no file {name}", "command.files", "check the path")
        digest.update(f"{name}\0{sha256_of(Path(name))}\0".encode())
    return digest.hexdigest()


def runner_command(root: Path, attempt: int) -> list[str]:
    return [sys.executable, "-m", RUNNER, str(root), str(attempt)]


def build(config: CommandConfig) -> Workload:
    what = "this run is trained by a script of its own, which knows its model and data; Paceline does not"
    raise UsageError(what, "recipe: command", "use `paceline train`, `paceline sweep` and `paceline report` for it")


def _argv(config: Any, root: Path, world_size: int) -> list[str]:
    return render_argv(config, root, world_size, port=0)


RECIPE = Recipe(
    name="command",
    schema=CommandConfig,
    build=build,
    identify_data=identify_data,
    check=check,
    find_idle=find_idle,
    foreign=Foreign(start=runner_command, argv=_argv),
)
