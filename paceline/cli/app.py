"""The table of commands. `--help` is answered from this table alone; a command's own module is imported when it is called."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core
import typer.main

import paceline
from paceline.config.nearest import nearest
from paceline.errors import UsageError

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

Table = dict[str, tuple[str, str]]
"""name -> (module that has a function `command`, or a function `group` with a table `COMMANDS` of its own; one line of help)"""

COMMANDS: Table = {
    "preflight": ("paceline.cli.preflight", "Is this machine fit to train on, and this configuration on it?"),
    "prepare": ("paceline.cli.prepare", "Fetch a data set and bring it into the form that recipes read."),
    "train": ("paceline.cli.train", "Train a recipe or configuration on one or more ranks."),
    "sweep": ("paceline.cli.sweep", "Which configuration of a plan is the best one here, by measured trials."),
    "play": ("paceline.cli.play", "Run the phases of a playbook, each with a gate on its results."),
    "stop": ("paceline.cli.stop", "End a run: all ranks at one agreed step."),
    "watch": (
        "paceline.cli.watch",
        "Where each rank of a running run is, and what is wrong; supervises it if nobody does.",
    ),
    "diagnose": ("paceline.cli.diagnose", "What is wrong with a run, the most likely cause first, and what to do."),
    "triage": ("paceline.cli.triage", "The smallest change that cures a run, found by trials."),
    "evaluate": ("paceline.cli.evaluate", "Evaluate a trained model, and compare with what the run logged."),
    "export": ("paceline.cli.export", "Write a trained model as safetensors, with its configuration."),
    "recommend": ("paceline.cli.recommend", "What a trained model would show a user next."),
    "sample": ("paceline.cli.sample", "What a trained language model writes after a prompt."),
    "report": ("paceline.cli.report", "Write a page about a run: results, curves, attempts, configuration."),
    "explain": ("paceline.cli.explain", "Every value of a configuration, its origin, and what follows from it."),
    "bench": ("paceline.cli.bench", "The product's own measurements."),
}


class LazyGroup(typer.core.TyperGroup):
    """A group whose commands are in modules that are not imported yet."""

    table = COMMANDS

    def list_commands(self, ctx: Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        return load_command(cmd_name, self.table) if cmd_name in self.table else None

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        name = args[0]
        if name not in self.table and not name.startswith("-"):
            close, path = nearest(name, self.table), ctx.command_path
            do = f"{path} {close} …" if close else f"{path} --help"
            raise UsageError(f"there is no command {name!r} (there are: {', '.join(self.table)})", "command line", do)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self.table.items()])


def load_command(name: str, table: Table = COMMANDS) -> Command:
    """The command of that name, from its own module."""
    path, summary = table[name]
    module = importlib.import_module(path)
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    if hasattr(module, "COMMANDS"):
        group = type("Group", (LazyGroup,), {"table": module.COMMANDS})
        app.callback(cls=group, short_help=summary, no_args_is_help=True)(module.group)
    else:
        needs_words = any(each.default is each.empty for each in inspect.signature(module.command).parameters.values())
        app.command(name=name, short_help=summary, no_args_is_help=needs_words)(module.command)
    command: Command = typer.main.get_command(app)
    return command


def build_app() -> Command:
    """The whole command line, as something to call with a list of arguments."""
    app = typer.Typer(
        cls=LazyGroup, add_completion=False, rich_markup_mode=None, no_args_is_help=True, pretty_exceptions_enable=False
    )
    app.callback()(_root)
    command: Command = typer.main.get_command(app)
    return command


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"paceline {paceline.__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> Any:
    """Trains PyTorch models on one to many GPUs, and tells its operator early, and by name, what is wrong."""
