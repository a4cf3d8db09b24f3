"""A batch script for Slurm that trains, asks the run to stop before the time limit, queues itself again, and goes on from the checkpoint.

wish = parse_slurm(["partition=gpu time=2:00:00", "nodes=2"])
script = build_script(wish, ["train", "nsa"], root)      # plain text, to be read before it is used
submit(path)                                             -> "4711", the number of the job

Experimental: tested with stand-ins for sbatch, srun and scontrol.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.config.nearest import nearest
from paceline.errors import ConfigError, Problem, UsageError

WHERE = "flag --slurm"
KEYS = (
    "account",
    "constraint",
    "cpus-per-task",
    "exclude",
    "exclusive",
    "gpus-per-node",
    "gres",
    "job-name",
    "mem",
    "mem-per-gpu",
    "nodelist",
    "nodes",
    "partition",
    "qos",
    "reservation",
    "signal",
    "time",
)
"""options of sbatch, by their long names; `signal` is how many seconds before the limit the run is asked to stop"""
_OURS = ("error", "ntasks", "ntasks-per-node", "open-mode", "output", "requeue")
_TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}")
_VALUE = re.compile(r"[\w.:/,@+\[\]&|*()=-]+", re.ASCII)
_PATH = re.compile(r"[\w./+=@:,-]+", re.ASCII)
_SIGNAL_S = 120
_EARLY_S = 60
"""that sbatch's manual allows Slurm to send a signal earlier than asked for"""
_SUBMIT_S = 60.0


@dataclass(frozen=True)
class SlurmWish:
    """What is asked of Slurm."""

    options: dict[str, str]
    """what becomes a line each; an empty value is an option by itself"""
    num_nodes: int = 1
    signal_s: int = _SIGNAL_S


def parse_slurm(words: Sequence[str]) -> SlurmWish:
    """From `key=value`, several in one string or apart; all mistakes at once."""
    options: dict[str, str] = {}
    problems = []
    for word in " ".join(words).split():
        key, equals, value = word.lstrip("-").partition("=")
        key = key.replace("_", "-")
        wrong = _wrong(key, value, bool(equals), options)
        if wrong is not None:
            problems.append(Problem(wrong[0], WHERE, wrong[1]))
        options[key] = value
    if problems:
        raise ConfigError(problems=problems)
    num_nodes, signal_s = int(options.pop("nodes", 1)), int(options.pop("signal", _SIGNAL_S))
    limit_s = limit_seconds(options["time"]) if "time" in options else 0
    if 0 < limit_s < signal_s + _EARLY_S:
        # The job would be asked to stop as it begins, queue itself again, and so for ever.
        what = f"time={options['time']} is {limit_s:,} s, and the run is to be asked {signal_s} s before its end (up to {_EARLY_S} s earlier)"
        raise UsageError(what, WHERE, f"time=1:00:00, or a smaller signal= than {signal_s}")
    return SlurmWish(options, num_nodes, signal_s)


def limit_seconds(text: str) -> int:
    """Of minutes, minutes:seconds, hours:minutes:seconds, or days-hours with both or one of those; 0: there is none."""
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    else:
        hours, minutes, seconds = [0, *parts, 0][:3] if len(parts) < 3 else parts
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _wrong(key: str, value: str, has_value: bool, given: dict[str, str]) -> tuple[str, str] | None:
    """(what, what to write instead); None where nothing is wrong."""
    if key in _OURS:
        return f"{key} is set by Paceline itself", "take it out; --dry-run shows the script"
    if key not in KEYS:
        close = nearest(key, KEYS)
        do = f"did you mean {close}?" if close else f"there are: {', '.join(KEYS)}"
        return f"--slurm knows no {key!r}", do
    if key in given:
        return f"{key} is given twice", "give it once"
    if key == "exclusive":
        return ("exclusive has no value", "write it like --slurm exclusive") if has_value else None
    if not _VALUE.fullmatch(value):
        return f"{key}={value} cannot be used", f"write it like --slurm {key}=VALUE, without spaces"
    if key == "time" and not _TIME.fullmatch(value):
        return (
            f"time={value} is not a time limit of Slurm",
            "write it like time=2:00:00 (hours), or time=1-12 (days-hours)",
        )
    is_number = re.fullmatch(r"[0-9]{1,9}", value) is not None and int(value) >= 1
    if key in ("nodes", "cpus-per-task") and not is_number:
        return f"{key}={value} is not a number", f"write it like {key}=2"
    if key == "signal" and not (is_number and 30 <= int(value) <= 65535):
        return f"signal={value} is not a number of seconds from 30 to 65535", "write it like signal=300"
    return None


def build_script(wish: SlurmWish, words: Sequence[str], root: Path, directory: Path | None = None) -> str:
    """The script; `words` come after `paceline`, `root` is the run directory."""
    if not _PATH.fullmatch(str(root)):
        what = f"the run directory {root} has a character in it that Slurm's options cannot carry"
        raise UsageError(what, str(root), "choose one of letters, digits and . _ - with --out DIR")
    options = {"job-name": f"paceline-{root.name}", "nodes": str(wish.num_nodes), "ntasks-per-node": "1"} | wish.options
    options |= {
        "signal": f"B:USR1@{wish.signal_s}",
        "requeue": "",
        "open-mode": "append",
        "output": f"{root}.slurm.log",
    }
    paceline = shlex.join([sys.executable, "-m", "paceline"])
    meeting = ' --nnodes "$SLURM_NNODES" --rdzv "$first:$port"' if wish.num_nodes > 1 else ""
    # srun does not take this one over from the job since Slurm 22.05, and gives one core without it.
    cores = f" --cpus-per-task={wish.options['cpus-per-task']}" if "cpus-per-task" in wish.options else ""
    return _SCRIPT.format(
        options="\n".join(
            f"#SBATCH --{key}={value}" if value else f"#SBATCH --{key}" for key, value in options.items()
        ),
        directory=shlex.quote(str(directory or Path.cwd())),
        run=shlex.quote(str(root)),
        train=f"{paceline} {shlex.join(words)} --out {shlex.quote(str(root))}{meeting}",
        stop=f"timeout {wish.signal_s - 20} {paceline} stop",
        cores=cores,
    )


_SCRIPT = """#!/bin/bash
# Trains. USR1, before the time limit, asks the run to stop, which leaves a checkpoint; then the job queues itself again and goes on from there.
{options}

cd {directory} || exit 2
run={run}
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000))
asked=no

ask_to_stop() {{
    echo "paceline: the time limit is near, asking the run to stop"
    asked=failed
    {stop} "$run"
    case $? in
        0 | 4) asked=yes ;;
        *) echo "paceline: it could not be asked: the next start goes on from the newest checkpoint there is" ;;
    esac
}}
trap ask_to_stop USR1

# In the background, because a shell that waits for a program in the foreground looks at no signal before it has ended.
srun --ntasks-per-node=1 --kill-on-bad-exit=0{cores} \\
    {train} &
step=$!
wait "$step"
code=$?
if [ "$asked" = no ]; then
    exit "$code"
fi
if [ "$asked" = yes ]; then
    wait "$step"
    code=$?
    if [ "$code" -ne 0 ]; then
        echo "paceline: the run failed while it was asked to stop (exit code $code); the job is not queued again"
        exit "$code"
    fi
fi
echo "paceline: queueing job $SLURM_JOB_ID again"
scontrol requeue "$SLURM_JOB_ID"
"""


def submit(path: Path) -> str:
    """The number of the job that `sbatch` made of the script."""
    program = shutil.which("sbatch")
    if program is None:
        what = "there is no sbatch here: nothing was submitted, the script is written"
        raise UsageError(what, str(path), f"on a host of the cluster: sbatch {path}")
    try:
        done = subprocess.run(
            [program, "--parsable", str(path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SUBMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"sbatch did not answer ({error})", str(path), f"try it yourself: sbatch {path}") from error
    if done.returncode != 0:
        said = next((line for line in done.stderr.splitlines() if line.strip()), f"exit code {done.returncode}")
        raise UsageError(f"sbatch refuses the script: {said}", str(path), "change --slurm; --dry-run shows the script")
    return done.stdout.strip().partition(";")[0]
