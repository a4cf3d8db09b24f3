"""Which rank this process is, and which launch it belongs to, from what its launcher left in the environment.

find_rank()                                -> Rank(0, 2, launch="127.0.0.1:29500, restart 0, started by process 4711", is_one_host=True)
find_rank(rank=1, world_size=2)            # where no launcher says it, as in a process of torch.multiprocessing
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.errors import UsageError

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Rank:
    """One process among those that train together."""

    rank: int = 0
    world_size: int = 1
    launch: str = ""
    """what only the ranks of one start have in common: rank 0 writes it into run.json, the others look for it there"""
    is_one_host: bool = True

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def find_rank(rank: int | None = None, world_size: int | None = None, environ: Mapping[str, str] | None = None) -> Rank:
    """This process's place: as given, else as RANK and WORLD_SIZE say, else alone."""
    environ = os.environ if environ is None else environ
    if rank is None and world_size is None:
        given, where = (environ.get("RANK"), environ.get("WORLD_SIZE")), "the environment"
        if given == (None, None):
            return Rank()
    else:
        given, where = (_text(rank), _text(world_size)), "start_run(rank=…, world_size=…)"
    found = [int(text) if text is not None and text.isdecimal() else None for text in given]
    if None in given:
        names = ("RANK", "WORLD_SIZE") if where == "the environment" else ("rank", "world_size")
        missing, there = (
            (names[0], f"{names[1]}={given[1]}") if given[0] is None else (names[1], f"{names[0]}={given[0]}")
        )
        what = f"{missing} is missing: {there} alone does not say which of the ranks this is"
        raise UsageError(what, where, "give both, or neither for one process; torchrun sets RANK and WORLD_SIZE")
    if found[0] is None or found[1] is None or found[0] >= found[1]:
        what = f"rank {given[0]} of {given[1]} is no place among ranks"
        raise UsageError(what, where, "give both, as numbers, with 0 <= rank < world_size")
    if found[1] == 1:
        return Rank()
    is_one_host = _is_one_host(environ, found[1])
    return Rank(found[0], found[1], _launch(environ, is_one_host), is_one_host)


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def _is_one_host(environ: Mapping[str, str], world_size: int) -> bool:
    local = environ.get("LOCAL_WORLD_SIZE")
    if local is not None:
        return local == str(world_size)
    if environ.get("SLURM_JOB_NUM_NODES", "1") != "1":
        return False
    return environ.get("MASTER_ADDR", "localhost") in _LOOPBACK


def _launch(environ: Mapping[str, str], is_one_host: bool) -> str:
    parts = []
    if "MASTER_ADDR" in environ:
        parts.append(f"{environ['MASTER_ADDR']}:{environ.get('MASTER_PORT', '')}")
    for words, name in (
        ("", "TORCHELASTIC_RUN_ID"),
        ("restart ", "TORCHELASTIC_RESTART_COUNT"),
        ("job ", "SLURM_JOB_ID"),
        ("job step ", "SLURM_STEP_ID"),
    ):
        if name in environ:
            parts.append(f"{words}{environ[name]}")
    # torchrun's default address is the same at every start; the process that started all ranks is not.
    if is_one_host:
        parts.append(f"started by process {os.getppid()}")
    return ", ".join(parts)
