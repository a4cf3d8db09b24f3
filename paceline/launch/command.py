"""The command line that starts the workers: torch's own launcher, with a rendezvous on a free port of this machine, or of the leading host.

python -m torch.distributed.run --nnodes 1 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:0 … -m paceline.worker …
"""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.launch.warm import TORCHRUN

WORKER_MODULE = "paceline.worker"
LAUNCH_MARK = "LAUNCHED_BY_PACELINE"
"""A variable that everything below one start inherits, also what a foreign script starts: by it all can be found again."""


_ALONE = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]


@dataclass(frozen=True)
class Group:
    """This host's place among the agents of one attempt.

    They meet at a place that is known beforehand, and none of them restarts anything: who takes part, and what comes after a failure,
    is decided above them.
    """

    nnodes: int
    node_rank: int
    master_addr: str
    master_port: int

    def arguments(self) -> list[str]:
        address = f"[{self.master_addr}]" if ":" in self.master_addr else self.master_addr
        where = ["--master-addr", address, "--master-port", str(self.master_port)]
        return ["--node-rank", str(self.node_rank), "--rdzv-backend", "static", *where, "--max-restarts", "0"]


def new_rendezvous_id() -> str:
    """Names one start of workers; each of them carries it as TORCHELASTIC_RUN_ID, so that all can be found again."""
    return f"paceline-{uuid.uuid4().hex}"


def agent_command(
    nproc: int,
    worker_arguments: Sequence[str],
    *,
    rendezvous_id: str | None = None,
    scratch: Path | None = None,
    module: str = WORKER_MODULE,
    group: Group | None = None,
) -> list[str]:
    """The agent's command line; port 0 lets the system choose a free one.

    The address is given in numbers: `--standalone` asks for this host's name, and where that does not resolve it hangs (torch 2.13).
    """
    command = [*TORCHRUN, "--nnodes", str(group.nnodes if group is not None else 1), "--nproc-per-node", str(nproc)]
    command += group.arguments() if group is not None else _ALONE
    # Without an id of our own torchrun takes the word "none"; harmless with port 0, where nobody else can join.
    if rendezvous_id is not None:
        command += ["--rdzv-id", rendezvous_id]
    # Where torchrun puts its own files; it would otherwise leave a directory behind in the temporary one at every start.
    if scratch is not None:
        command += ["--log-dir", str(scratch)]
    return [*command, "-m", module, *worker_arguments]


def claimed_arguments(root: Path, attempt: int, debug: bool) -> list[str]:
    """What the worker is told when the launcher has claimed the run and written its configuration."""
    arguments = [str(root / "config.yaml"), "--out", str(root), "--attempt", str(attempt)]
    return [*arguments, "--debug"] if debug else arguments


def free_arguments(
    target: str, overrides: Sequence[str], root: Path, debug: bool, origin: Sequence[str] = ()
) -> list[str]:
    """What the worker is told when rank 0 claims the run itself: the user's own words, but for what the line says otherwise.

    The number of workers, the environment and --out carry the effect of `launch.*` and `run.out`; a worker that also read
    launch.gpus would count in a list of GPUs that is narrowed already. `origin` are the words that say where to begin.
    """
    kept = [text for text in overrides if not _is_said_otherwise(text.partition("=")[0].strip())]
    arguments = [target, *kept, "--out", str(root), *origin]
    return [*arguments, "--debug"] if debug else arguments


def _is_said_otherwise(key: str) -> bool:
    return key == "run.out" or key.partition(".")[0] == "launch"


def shell_line(
    command: Sequence[str], assigned: Mapping[str, str], removed: Sequence[str] = (), directory: Path | None = None
) -> str:
    """One line for any shell, with the environment it needs; `directory` is where its relative paths begin."""
    words = [f"-u {shlex.quote(name)}" for name in removed]
    words += [f"{name}={shlex.quote(value)}" for name, value in assigned.items()]
    change = f"cd {shlex.quote(str(directory))} && " if directory is not None else ""
    return change + (f"env {' '.join(words)} " if words else "") + shlex.join(command)
