import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Annotated

import pytest
import typer

from paceline.cli import app
from paceline.cli.arguments import Debug, Nproc, Overrides, Target, launch_flags
from paceline.cli.main import run_command
from paceline.errors import Interrupted, StorageError, UsageError


def test_help_names_every_command_and_imports_none_of_them():
    code = (
        "import json, sys; from paceline.cli.main import run_command; code = run_command(['--help']);"
        "print(json.dumps([code, sorted(sys.modules)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    text, _, last = done.stdout.rpartition("Commands:")
    exit_code, modules = json.loads(last.splitlines()[-1])
    assert exit_code == 0
    assert "Usage: paceline" in text
    assert [line.split()[0] for line in last.splitlines() if line[:3].strip()][: len(app.COMMANDS)] == list(
        app.COMMANDS
    )
    heavy = {"torch", "numpy", "pydantic", "yaml", "rich", "psutil", *(module for module, _ in app.COMMANDS.values())}
    assert heavy.isdisjoint(modules)


def test_python_m_paceline_is_the_same_command():
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("paceline ")


@pytest.mark.parametrize("name", [*app.COMMANDS])
def test_every_command_of_the_table_exists_and_explains_itself(name, capsys):
    assert run_command([name, "--help"]) == 0
    assert f"Usage: paceline {name}" in capsys.readouterr().out


def test_an_unknown_command_names_the_nearest(capsys):
    assert run_command(["trian", "sasrec"]) == 2
    assert "paceline train" in capsys.readouterr().err


def test_an_unknown_flag_names_the_nearest(capsys):
    assert run_command(["explain", "sasrec", "--nprocs", "2"]) == 2
    assert "--nproc" in capsys.readouterr().err.partition("No such option: --nprocs")[2]


@pytest.fixture
def probe(monkeypatch):
    """A command of our own in the table, whose module is made here."""

    def install(function):
        module = types.ModuleType("probe_command")
        module.command = function
        monkeypatch.setitem(sys.modules, "probe_command", module)
        monkeypatch.setitem(app.COMMANDS, "probe", ("probe_command", "A probe."))

    return install


def test_overrides_and_options_in_any_order(probe):
    seen = []

    def command(target: Target, overrides: Overrides = None, nproc: Nproc = None, debug: Debug = False) -> None:
        seen.append((target, overrides, nproc))

    probe(command)
    assert run_command(["probe", "sasrec", "train.max_steps=5", "--nproc", "2", "data.users=10"]) == 0
    assert run_command(["probe", "--nproc=2", "sasrec", "run.name=-x"]) == 0
    assert run_command(["probe", "sasrec"]) == 0
    assert seen == [
        ("sasrec", ["train.max_steps=5", "data.users=10"], "2"),
        ("sasrec", ["run.name=-x"], "2"),
        ("sasrec", None, None),
    ]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("broken here", "a.yaml:3", "mend it"), 2),
        (StorageError("broken here", "a.yaml:3", "mend it"), 4),
        (Interrupted("broken here", "a.yaml:3", "mend it"), 130),
    ],
)
def test_errors_become_messages_and_exit_codes_and_tracebacks_only_with_debug(probe, capsys, error, code):
    def command(debug: Debug = False, word: Annotated[str, typer.Argument()] = "") -> None:
        raise error

    probe(command)
    assert run_command(["probe", "x"]) == code
    message = capsys.readouterr().err
    assert message == f"{type(error).__name__}: broken here\n  where: a.yaml:3\n  do:    mend it\n"
    for arguments in (["probe", "x", "--debug"], ["--debug", "probe", "x"]):
        assert run_command(arguments) == code
        shown = capsys.readouterr().err
        assert "Traceback" in shown
        assert shown.endswith(message)


def test_an_unforeseen_error_is_one_line_and_exit_code_4(probe, capsys):
    def command(word: Annotated[str, typer.Argument()] = "") -> None:
        raise RuntimeError("surprise")

    probe(command)
    assert run_command(["probe", "x"]) == 4
    message = capsys.readouterr().err
    assert "RuntimeError: surprise" in message
    assert "--debug" in message
    assert "Traceback" not in message


def test_ctrl_c_and_exit_codes_of_commands(probe):
    def interrupted(word: Annotated[str, typer.Argument()] = "") -> None:
        raise KeyboardInterrupt

    def leaving(word: Annotated[str, typer.Argument()] = "") -> None:
        raise typer.Exit(5)

    probe(interrupted)
    assert run_command(["probe", "x"]) == 130
    probe(leaving)
    assert run_command(["probe", "x"]) == 5


@pytest.mark.parametrize("num_lines", [1, 100_000])
def test_a_reader_that_goes_away_is_no_error(num_lines):
    """One line fails when the buffer is flushed at the end, many lines inside the command."""
    code = (
        "import sys, types; from paceline.cli import app, main; probe = types.ModuleType('probe');"
        f"probe.command = lambda: print('line\\n' * {num_lines}); sys.modules['probe'] = probe;"
        "app.COMMANDS['probe'] = ('probe', ''); sys.stdin.read(); sys.argv = ['paceline', 'probe', '--']; main.main()"
    )
    pipe, buffered = subprocess.PIPE, {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    child = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe, env=buffered)
    child.stdout.close()
    child.stdout = None
    _, errors = child.communicate(b"", timeout=60)
    assert errors == b""
    assert child.returncode == 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_without_room_is_said(unbuffered):
    command = [sys.executable, "-m", "paceline", "preflight", "--quick"]
    with open("/dev/full", "wb") as full:
        environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment, timeout=60, check=False)
    assert done.returncode == 4
    assert done.stderr.startswith(b"StorageError: cannot write the output (No space left on device)\n")


def test_a_directory_that_was_removed_is_said(probe, capsys, tmp_path, monkeypatch):
    def command(word: Annotated[str, typer.Argument()] = "") -> None:
        Path(word).absolute()

    probe(command)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert run_command(["probe", "x"]) == 2
    assert "UsageError: the current directory has been removed" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)


def test_flags_are_keys_with_an_origin():
    assert launch_flags() == {}
    assert launch_flags("2", "0,4") == {"launch.nproc": (2, "flag --nproc"), "launch.gpus": ([0, 4], "flag --gpus")}
    assert launch_flags("auto", "") == {"launch.nproc": ("auto", "flag --nproc"), "launch.gpus": ([], "flag --gpus")}
    with pytest.raises(UsageError, match="--gpus"):
        launch_flags(gpus="0;1")


def test_an_arrow_that_the_terminal_cannot_show_ends_nothing():
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "paceline", "train", "sasrec", "launch.gpus=[]", "--dry-run"]
    done = subprocess.run(command, capture_output=True, env=environment, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
