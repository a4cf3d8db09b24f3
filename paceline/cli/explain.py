"""`paceline explain`: every value of a configuration with its origin, and the arithmetic of what follows from it.

Nothing is started but, where torch is installed, one worker process that counts parameters and samples.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli.arguments import Debug, Gpus, Json, Nproc, Overrides, Target, launch_flags
from paceline.cli.asking import can_ask, waiting
from paceline.cli.sizes import ask_sizes
from paceline.config.consequences import Consequence, plan_consequences
from paceline.config.contradictions import Facts
from paceline.config.describe import describe
from paceline.config.effects import find_idle_length
from paceline.config.loading import DEFAULT
from paceline.config.source import show
from paceline.errors import PacelineError, UsageError
from paceline.launch.environment import Note, worker_environment
from paceline.launch.placement import Placement, place_ranks, wished_placement
from paceline.recipes.job import Job, load_job


def command(
    target: Target,
    overrides: Overrides = None,
    nproc: Nproc = None,
    gpus: Gpus = None,
    as_json: Json = False,
    no_sizes: Annotated[
        bool, typer.Option("--no-sizes", help="Do not count parameters and samples (no torch).")
    ] = False,
    debug: Debug = False,
) -> None:
    """Every value of a configuration, its origin, and what follows from it.

    Example: paceline explain sasrec train.global_batch=100 --nproc 3
    """
    job = load_job(target, overrides or [], launch_flags(nproc, gpus))
    explanation = explain(job, with_sizes=not no_sizes and can_ask())
    if as_json:
        print(json.dumps(explanation.to_record(), indent=2, ensure_ascii=False, default=str))
    else:
        _print(explanation)
    if explanation.errors:
        raise _together(explanation.errors)


@dataclass
class Explanation:
    """Everything that can be said about a job before it runs, and what stands against running it."""

    job: Job
    placement: Placement
    follows: list[Consequence] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    sizes: dict[str, Any] | None = None
    idle: list[tuple[str, str]] = field(default_factory=list)
    """(key, reason) of what was given and has no effect"""
    errors: list[PacelineError] = field(default_factory=list)

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """An error inside does not keep the rest from being printed; it is raised at the end."""
        try:
            yield
        except UsageError as error:
            self.errors.append(error)

    def values(self) -> Iterator[tuple[str, Any, str, str, str]]:
        """(key, value, origin, fingerprint class, sentence) of every key."""
        dumped = self.job.config.model_dump(mode="json")
        for key in describe(type(self.job.config)).values():
            value: Any = dumped
            for part in key.name.split("."):
                value = value[part]
            yield key.name, value, self.job.origins[key.name], key.fingerprint, key.sentence

    def to_record(self) -> dict[str, Any]:
        return {
            "recipe": self.job.recipe.name,
            "target": self.job.target,
            "values": {
                key: {"value": value, "origin": origin, "fingerprint": fingerprint}
                for key, value, origin, fingerprint, _ in self.values()
            },
            "world_size": self.placement.world_size,
            "num_gpus": self.placement.num_gpus,
            "follows": {item.name.replace(" ", "_"): {"value": item.value, "text": item.text} for item in self.follows},
            "without_effect": dict(self.idle),
            "sizes": self.sizes,
            "environment": [asdict(note) for note in self.notes],
            "errors": [error.to_record() for error in self.errors],
        }


def explain(job: Job, with_sizes: bool) -> Explanation:
    """Collects what follows from the job on this machine."""
    launch = job.config.launch
    explanation = Explanation(job, wished_placement(launch))
    with explanation.collecting():
        explanation.placement = place_ranks(launch, job.origins["launch.gpus"])
    placement = explanation.placement
    world_size, num_gpus = placement.world_size, placement.num_gpus
    root = None
    with explanation.collecting():
        job.check(Facts(world_size, num_gpus))
    with explanation.collecting():
        root = str(job.default_root(job.identity()))
    foreign = job.recipe.foreign
    if with_sizes and not explanation.errors and foreign is None:
        with explanation.collecting(), waiting("counting parameters and samples in a worker process"):
            explanation.sizes = ask_sizes(job.target, job.overrides)
    num_samples = explanation.sizes["num_train"] if explanation.sizes else None
    if num_samples:
        with explanation.collecting():
            job.check(Facts(world_size, num_gpus, num_samples))
    explanation.follows = [Consequence("world size", world_size, _world_text(job, world_size, num_gpus))]
    if foreign is None:
        explanation.follows += plan_consequences(job.config, world_size, num_samples)
        explanation.follows += _sizes(explanation.sizes)
    elif not explanation.errors:
        argv = foreign.argv(job.config, Path(root or ""), world_size)
        explanation.follows.append(Consequence("command", shlex.join(argv), shlex.join(argv)))
    if root is not None:
        explanation.follows.append(Consequence("run directory", root, root))
    explanation.idle = job.idle(job.given)
    if num_samples:
        explanation.idle += find_idle_length(job.config.train, num_samples, job.given)
    environment = worker_environment(launch, world_size, num_gpus, os.environ, visible=placement.visible)
    explanation.notes = environment.notes
    return explanation


def _world_text(job: Job, world_size: int, num_gpus: int) -> str:
    if job.config.launch.nproc != "auto":
        return f"{world_size}: launch.nproc ({job.origins['launch.nproc']})"
    return f"{world_size}: one per visible GPU" if num_gpus else "1: no GPU is visible"


def _sizes(sizes: dict[str, Any] | None) -> Iterator[Consequence]:
    if sizes is None:
        return
    yield Consequence("parameters", sizes["num_parameters"], f"{sizes['num_parameters']:,}")
    yield Consequence("training samples", sizes["num_train"], f"{sizes['num_train']:,}")
    for split, count in sizes["num_evaluate"].items():
        yield Consequence(f"{split} samples", count, f"{count:,}")
    for name, value in sizes.get("details", {}).items():
        form = ",d" if type(value) is int else ".4g" if type(value) is float else ""
        yield Consequence(name.replace("_", " "), value, format(value, form))


def _together(errors: list[PacelineError]) -> PacelineError:
    if len(errors) == 1:
        return errors[0]
    kind = type(errors[0]) if len({type(error) for error in errors}) == 1 else UsageError
    return kind(problems=dict.fromkeys(problem for error in errors for problem in error.problems))


def _print(explanation: Explanation) -> None:
    import shutil

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = shutil.get_terminal_size((160, 24)).columns
    console = Console(width=width, highlight=False)
    table = Table(box=None, pad_edge=False)
    for heading in ("key", "value", "origin"):
        table.add_column(heading, overflow="fold")
    wide = width >= 130
    if wide:
        table.add_column("what it does", style="dim", overflow="fold")
    for key, value, origin, _, sentence in explanation.values():
        style = "dim" if origin == DEFAULT else "bold"
        cells = [Text(key, style), Text(show(value), style), Text(origin, style), Text(sentence)]
        table.add_row(*cells[: 4 if wide else 3])
    console.print(table)
    follows = Table(box=None, pad_edge=False, show_header=False)
    for item in explanation.follows:
        follows.add_row(Text(item.name), Text(item.text))
    console.print(Text("\nwhat follows", "bold"))
    console.print(follows)
    if explanation.idle:
        console.print(Text("\nwithout effect", "bold"))
        for name, reason in explanation.idle:
            console.print(Text(f"{name}: {reason}"))
    if explanation.notes:
        environment = Table(box=None, pad_edge=False, show_header=False)
        for note in explanation.notes:
            value = "(taken out)" if note.value is None else note.value
            reason = f"warning: {note.reason}" if note.is_warning else note.reason
            style = "yellow" if note.is_warning else ""
            environment.add_row(*(Text(cell, style) for cell in (note.name, value, note.origin, reason)))
        console.print(Text("\nenvironment of the workers", "bold"))
        console.print(environment)
