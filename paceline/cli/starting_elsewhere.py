"""`paceline train --hostfile FILE` and `--slurm …`: the same command, started elsewhere. Both are experimental.

start_elsewhere("nsa", [], None, ["partition=gpu"], dry_run=True)    # prints the batch script
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.arguments import launch_flags
from paceline.errors import UsageError

_PORTS = range(20000, 30000)
"""below those that a system gives to whoever asks for any"""
Hostfile = Annotated[
    Path | None,
    typer.Option(
        "--hostfile",
        metavar="FILE",
        help="Experimental: start this command over ssh on every host of FILE, one in a line: host [slots=N]. The first one leads.",
    ),
]
Slurm = Annotated[
    list[str] | None,
    typer.Option(
        "--slurm",
        metavar="KEY=VALUE",
        help="Experimental: submit this command as a batch job: --slurm 'partition=gpu time=2:00:00 nodes=2'. Before the time limit "
        "the run leaves a checkpoint, and the job queues itself again.",
    ),
]
_OWN = {"--hostfile": 1, "--slurm": 1, "--dry-run": 0}
"""the options that are not passed on, and how many words follow each"""
_MEETING = ("--nnodes", "--rdzv")
_FLAGS = {"--out": "run.out", "--max-restarts": "supervise.max_restarts"}
"""options that stand for a key, beside those of launch"""


def start_elsewhere(
    target: str, overrides: Sequence[str], hostfile: Path | None, slurm: Sequence[str] | None, *, dry_run: bool
) -> int:
    """The exit code. What was typed is checked here first: a wrong key need not travel to every host."""
    from paceline.config.source import plain_scalar
    from paceline.recipes.job import load_job

    words = without(sys.argv[1:], _OWN)
    meeting = next((word for word in words if word.partition("=")[0] in _MEETING), None)
    if hostfile is not None and slurm:
        raise UsageError("--hostfile and --slurm are two ways to do the same", "command line", "take one of them out")
    if meeting is not None:
        do = "nodes=2 in --slurm says how many" if slurm else "the hostfile says how many and where: take it out"
        raise UsageError("the hosts are given twice", f"flag {meeting.partition('=')[0]}", do)
    flags = launch_flags(option_value(words, "--nproc"), option_value(words, "--gpus"))
    for flag, key in _FLAGS.items():
        value = option_value(words, flag)
        if value is not None:
            flags[key] = (value if key == "run.out" else plain_scalar(value), f"flag {flag}")
    job = load_job(target, overrides, flags)
    if hostfile is not None:
        return _over_ssh(hostfile, words, dry_run)
    return _in_batch(slurm or [], words, job.default_root(job.identity()).absolute(), dry_run)


def choose_port(directory: Path, words: Sequence[str]) -> int:
    """Where the hosts meet: another port for another command, so that two trainings of the same hosts do not take each other for one."""
    return _PORTS[zlib.crc32("\0".join([str(directory), *words]).encode()) % len(_PORTS)]


def without(words: Sequence[str], options: Mapping[str, int]) -> list[str]:
    """The words of a command line without these options and what follows each."""
    kept: list[str] = []
    skip = 0
    for word in words:
        name, equals, _ = word.partition("=")
        if skip:
            skip -= 1
        elif name in options:
            skip = 0 if equals else options[name]
        else:
            kept.append(word)
    return kept


def option_value(words: Sequence[str], option: str) -> str | None:
    """The last value of an option, in either form; None where it is not there."""
    found = None
    for word, after in zip(words, [*words[1:], None], strict=True):
        if word == option:
            found = after
        elif word.startswith(f"{option}="):
            found = word.partition("=")[2]
    return found


def _over_ssh(hostfile: Path, words: list[str], dry_run: bool) -> int:
    from paceline.launch.command import shell_line
    from paceline.launch.hosts.hostfile import read_hostfile
    from paceline.launch.hosts.ssh import remote_line, ssh_command, start_by_ssh

    hosts, port = read_hostfile(hostfile), choose_port(Path.cwd(), words)
    if dry_run:
        for host in hosts:
            print(shell_line(ssh_command(host, remote_line(host, hosts, words, port, Path.cwd())), {}))
        return 0
    return start_by_ssh(hosts, words, port=port, say=lambda line: print(line, flush=True))


def _in_batch(slurm: Sequence[str], words: list[str], root: Path, dry_run: bool) -> int:
    from paceline.files import storage_errors, write_text
    from paceline.launch.hosts.slurm import build_script, parse_slurm, submit

    script = build_script(parse_slurm(slurm), words, root)
    print(script)
    if dry_run:
        return 0
    path = root.with_name(f"{root.name}.sbatch")
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, script)
    print(f"script: {path}")
    print(f"submitted as job {submit(path)}; its output: {root}.slurm.log")
    return 0
