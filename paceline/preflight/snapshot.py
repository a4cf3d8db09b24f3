"""What a machine and a working tree are, as files to keep: git_sha.txt, collect_env.txt, nvidia_smi.xml.

    write_snapshot(Path("out/snapshot"))     -> ["git_sha.txt", "collect_env.txt", "nvidia_smi.xml"]

Each is what the tool of that name says; where it is not there, or says nothing, the file holds the reason. torch is asked in a child process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.files import storage_errors, write_text

TIMEOUT_S = 60.0
_GIT = ["git", "rev-parse", "--verify", "HEAD"]
_DIRTY = ["git", "status", "--porcelain"]
_COLLECT = [sys.executable, "-m", "torch.utils.collect_env"]
_INVENTORY = ["nvidia-smi", "-q", "-x"]


def write_snapshot(directory: Path, commands: Mapping[str, Sequence[str]] | None = None) -> list[str]:
    """Writes the files; `commands` stand for the tools in a test."""
    tools = dict(commands or {"git_sha.txt": _GIT, "collect_env.txt": _COLLECT, "nvidia_smi.xml": _INVENTORY})
    with storage_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for name, command in tools.items():
            text, is_said = _ask(command)
            if command is _GIT and is_said:
                changed, _ = _ask(_DIRTY)
                text += f"{len(changed.splitlines())} files changed since\n" if changed.strip() else ""
            write_text(directory / name, text if is_said else f"not available: {text}\n")
    return list(tools)


def _ask(command: Sequence[str]) -> tuple[str, bool]:
    """(what it says, True), or (why it says nothing, False)."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        return f"{command[0]} is not installed here", False
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}", False
    if done.returncode:
        said = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "it said nothing")
        return f"{' '.join(command[-4:])} ended with {done.returncode}: {said.strip()}", False
    return done.stdout, True
