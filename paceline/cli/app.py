"""The table of commands. `--help` is answered from this table alone; a command's own module is imported when it is called."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core
import typer.main

import paceline
from paceline.config.nearest import nearest
from paceline.errors import UsageError

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("paceline.cli.train", "Train a recipe or configuration on one or more ranks."),
    "stop": ("paceline.cli.stop", "End a run: all ranks at one agreed step."),
    "evaluate": ("paceline.cli.evaluate", "Evaluate a trained model, and compare with what the run logged."),
    "export": ("paceline.cli.export", "Write a trained model as safetensors, with its configuration."),
    "explain": ("paceline.cli.explain", "Every value of a configuration, its origin, and what follows from it."),
    "bench": ("paceline.cli.bench", "The product's own measurements."),
}
"""name -> (module that has a function `command`, one line of help)"""


class LazyGroup(typer.core.TyperGroup):
    """A group whose commands are functions called `command` in modules that are not imported yet."""

    def list_commands(self, ctx: Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        return load_command(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            close = nearest(name, COMMANDS)
            do = f"paceline {close} …" if close else "paceline --help"
            raise UsageError(f"there is no command {name!r} (there are: {', '.join(COMMANDS)})", "command line", do)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


def load_command(name: str) -> Command:
    """The command of that name, from its own module."""
    module, summary = COMMANDS[name]
    function = importlib.import_module(module).command
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name=name, short_help=summary, no_args_is_help=True)(function)
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
