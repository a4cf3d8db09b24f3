"""The words of a script's command line, with the values they stand for, and the expressions that read its lines.

render_argv(config, root, world_size=2, port=29400)   -> ["torchrun", "--nproc-per-node=2", "train.py", "--batch=64"]

`{params.batch}` is a parameter; any key of the configuration can be named, {launch.nproc} is the number that was decided, {run.out} the
run directory, {port} one that is free. Other braces are left as they are.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.config.describe import describe, value_at
from paceline.config.nearest import nearest_key
from paceline.config.source import show
from paceline.errors import ConfigError, Problem
from paceline.recipes.command.script import find_script
from paceline.telemetry.tables import METRICS_COLUMNS, VALIDATION_COLUMNS

if TYPE_CHECKING:
    from paceline.config.sections import RunConfig

_NAME = re.compile(r"\{([A-Za-z_]\w*(?:\.\w+)*)\}")
_OURS = ("attempt", "window_steps", "time", "step_ms_p50", "step_ms_p90", "step_ms_std")
_PARAMS = "params."
READABLE = tuple(name for name in METRICS_COLUMNS if name not in _OURS)
"""Columns of metrics.csv that a line may tell; a name that is none of them is a metric of the script's own, for validation.csv."""


def config_key(name: str) -> str:
    """The key behind a name that is typed or stands in a plan: `params.batch` is short for `command.params.batch`, as in argv."""
    return f"command.{name}" if name.startswith(_PARAMS) else name


def own_metrics(config: RunConfig) -> list[str]:
    """The metrics that go to validation.csv."""
    return sorted(name for name in value_at(config, "command.metrics") if name not in READABLE)


def known_values(config: RunConfig, root: Path | None = None, world_size: int = 1, port: int = 0) -> dict[str, Any]:
    """Everything that a word may name."""
    values = {name: value_at(config, name) for name in describe(type(config)) if not name.startswith("command.")}
    values |= {f"params.{name}": value for name, value in value_at(config, "command.params").items()}
    return values | {"launch.nproc": world_size, "run.out": str(root or config.run.out), "port": port}


def render(text: str, values: Mapping[str, Any]) -> str:
    def replace(match: re.Match[str]) -> str:
        value = values[match[1]]
        return value if isinstance(value, str) else show(value)

    return _NAME.sub(replace, text)


def render_argv(config: RunConfig, root: Path, world_size: int, port: int) -> list[str]:
    values = known_values(config, root, world_size, port)
    return [render(word, values) for word in value_at(config, "command.argv")]


def check_given(config: RunConfig) -> None:
    """Before a script is started: what its words name has to have a value. A plan's cases get theirs trial by trial."""
    values = known_values(config)
    for word in value_at(config, "command.argv"):
        for name in _NAME.findall(word):
            if values[name] is None:
                what = f"{{{name}}} in {word!r} stands for nothing: {name} is null"
                raise ConfigError(what, "command.argv", f"give {name}=…, or take the word out")


def samples_per_step(config: RunConfig) -> int | None:
    """Samples of one step; None where the configuration does not say."""
    given = value_at(config, "command.samples_per_step")
    return int(float(render(given, known_values(config)))) if isinstance(given, str) else given


def check_words(config: RunConfig) -> list[Problem]:
    """Names that nothing stands behind, parameters that no word uses, a program or a script that is not there."""
    values = known_values(config)
    argv: list[str] = value_at(config, "command.argv")
    problems = []
    texts = {"command.argv": argv}
    counted = value_at(config, "command.samples_per_step")
    if isinstance(counted, str):
        texts["command.samples_per_step"] = [counted]
    used = set()
    for where, words in texts.items():
        for word in words:
            for name in _NAME.findall(word):
                used.add(name)
                if name not in values:
                    near = nearest_key(name, values)
                    do = f"write {{{near}}}" if near else "give it in command.params"
                    problems.append(Problem(f"nothing is called {{{name}}} in {word!r}", where, do))
    for name in value_at(config, "command.params"):
        if f"params.{name}" not in used:
            do = f"add a word such as --{name}={{params.{name}}} to command.argv, or remove it"
            problems.append(Problem(f"no word of the script uses the parameter {name}", f"command.params.{name}", do))
    if not problems:
        problems += _check_files([render(word, values) for word in argv])
        problems += _check_samples(config, counted)
    return problems


def _check_files(argv: list[str]) -> list[Problem]:
    """What is plainly a file and is not there: otherwise every trial of a sweep would find that out for itself."""
    program, do = argv[0], "check its name or path"
    if shutil.which(program) is None:
        return [Problem(f"there is no program {program!r} here", "command.argv", do)]
    script = find_script(argv)
    if script is None or Path(script).is_file():
        return []
    return [Problem(f"there is no script {script} (looked for {Path(script).absolute()})", "command.argv", do)]


def _check_samples(config: RunConfig, counted: int | str | None) -> list[Problem]:
    if not isinstance(counted, str):
        return []
    where = "command.samples_per_step"
    try:
        number = samples_per_step(config)
    except ValueError:
        number = None
    if number is None or number < 1:
        do = "write a number, or a parameter such as {params.batch}"
        return [Problem(f"command.samples_per_step={counted} is no number of samples", where, do)]
    return []


def check_metrics(config: RunConfig) -> list[Problem]:
    problems = []
    metrics: dict[str, str] = value_at(config, "command.metrics")
    for name, pattern in metrics.items():
        where = f"command.metrics.{name}"
        if name in _OURS or (name in VALIDATION_COLUMNS and name not in READABLE) or not name.isidentifier():
            problems.append(Problem(f"{name} is not a name for a metric", where, "choose another word"))
            continue
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            do = "mend the regular expression"
            problems.append(Problem(f"the expression for {name} is not valid: {error}", where, do))
            continue
        if groups != 1:
            what = f"the expression for {name} has {groups} groups"
            problems.append(Problem(what, where, r"put exactly one in parentheses, such as loss ([\d.]+)"))
    if metrics and "step" not in metrics:
        do = r"add step: 'iter (\d+)', in the words of the script"
        problems.append(Problem("no expression tells the step", "command.metrics", do))
    return problems
