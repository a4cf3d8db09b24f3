"""run.json: what this run is, its state, and its attempts. Written by the owner of the run alone, read by everybody.

{"v": 1, "id": "a1b2c3d4e5f6", "recipe": "sasrec", "state": "running", "identity": {"fingerprint": "…", "values": {…}},
 "attempts": [{"attempt": 1, "state": "running", "world_size": 2, "owner_pid": 4711, "pulses": "/dev/shm/…", …}], …}
"""

from __future__ import annotations

import errno
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Any

from paceline.errors import UsageError
from paceline.files import overwrite_text, read_json, write_text
from paceline.telemetry.layout import SCHEMA, RunLayout

_ROOM = 4096
"""bytes of run.json for how an attempt ended, where the disk is full by then"""
STATES = ("running", "finished", "stopped", "failed")
"""finished: reached its length or stopped early by its own rule; stopped: asked to; failed: an error, exit code 2 or 4."""

SDK_RECIPE = "sdk"
"""What stands for the recipe of a loop that is not ours."""
FOREIGN_RECIPE = "command"
"""The recipe of a script that knows nothing of us."""

_KINDS: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "int | None": (int, NoneType),
    "float": (int, float),
    "float | None": (int, float, NoneType),
    "list[str]": list,
    "list[AttemptHost]": list,
    "dict[str, Any]": dict,
    "dict[str, Any] | None": (dict, NoneType),
}
"""annotation of a field -> what a JSON file holds there"""


@dataclass
class AttemptHost:
    """One host of an attempt that runs on several."""

    index: int
    """0: the host that owns the run"""
    host: str
    """its name, as people know it"""
    address: str
    first_rank: int
    num_ranks: int

    @property
    def ranks(self) -> range:
        return range(self.first_rank, self.first_rank + self.num_ranks)


@dataclass
class Attempt:
    """One start of the run, from its launch to its end."""

    attempt: int
    world_size: int
    owner_pid: int
    started: float
    pulses: str
    argv: list[str]
    state: str = "running"
    reason: str = ""
    step: int | None = None
    exit_code: int | None = None
    ended: float | None = None
    changed: list[str] = field(default_factory=list)
    """`key: old → new` of every setting that differs from the attempt before"""
    spent_s: float = 0.0
    """what earlier attempts of the same command took, restarts included: it counts for stop.max_hours"""
    launch: str = ""
    """what only the ranks of this attempt have in common, where they find each other through this file (the SDK)"""
    log_bytes: dict[str, Any] = field(default_factory=dict)
    """the size of each log when it began: what comes after is this attempt's"""
    hosts: list[AttemptHost] = field(default_factory=list)
    """which ranks are where; empty: all of them on the host that owns the run, or under a launcher that is not ours"""
    software: dict[str, Any] = field(default_factory=dict)
    """name -> version or digest of what trains (software.py); empty: not written down, as by older versions and by the SDK"""

    @property
    def has_several_hosts(self) -> bool:
        """By their names: two launchers on one machine are one host for everybody who looks at processes."""
        return len({each.host for each in self.hosts}) > 1

    def host_of(self, rank: int) -> str | None:
        """None: nobody has written it down."""
        return next((each.host for each in self.hosts if rank in each.ranks), None)


@dataclass
class RunFile:
    """The content of run.json."""

    id: str
    recipe: str
    name: str
    paceline: str
    created: float
    identity: dict[str, Any]
    """{"fingerprint": 64 hex digits, "values": {dotted key: value}}: what makes this run this run."""
    state: str = "running"
    reason: str = ""
    parent: dict[str, Any] | None = None
    """where a fork began: {"run": id, "root": …, "checkpoint": …, "step": …, "changed": [`key: old → new`], "given": …}"""
    init_from: dict[str, Any] | None = None
    """whose weights it began with: {"path": …, "digest": …, "given": …}; `given` is the path as it was typed"""
    attempts: list[Attempt] = field(default_factory=list)
    v: int = SCHEMA

    def save(self, layout: RunLayout) -> None:
        text = json.dumps(asdict(self), indent=2, default=str) + "\n"
        try:
            write_text(layout.run, text, room=_ROOM)
        except OSError as error:
            if error.errno != errno.ENOSPC or not layout.run.exists():
                raise
            # No room beside the old one: in its place, because a run that failed for want of room must not be called running.
            overwrite_text(layout.run, text)


def load_run_file(root: Path) -> RunFile | None:
    """The run.json below `root`; None if there is none. Refuses what it cannot read."""
    path = RunLayout(root).run
    do = "restore it from a copy, or start the run anew in another directory"
    damaged = UsageError("run.json is damaged: it cannot be read", str(path), do)
    try:
        content = read_json(path)
        version = int(content["v"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise damaged from error
    if version > SCHEMA:
        raise UsageError(
            f"this run was written by a newer Paceline (records version {version}, this one reads up to {SCHEMA})",
            str(path),
            "install the newer version",
        )
    try:
        attempts = [_load_attempt(attempt) for attempt in content["attempts"]]
        return RunFile(**known_fields(RunFile, content) | {"attempts": attempts})
    except (KeyError, TypeError, AttributeError) as error:
        raise damaged from error


def _load_attempt(content: dict[str, Any]) -> Attempt:
    known = known_fields(Attempt, content)
    hosts = [AttemptHost(**known_fields(AttemptHost, host)) for host in known.get("hosts", ())]
    return Attempt(**known | {"hosts": hosts})


def known_fields(kind: type, content: dict[str, Any]) -> dict[str, Any]:
    """What this version knows of a record; a newer one may have written more. TypeError if a value is of another kind."""
    known = {}
    for entry in fields(kind):
        if entry.name in content:
            value = content[entry.name]
            if not isinstance(value, _KINDS.get(str(entry.type), object)):
                raise TypeError(f"{entry.name} is {value!r}")
            known[entry.name] = value
    return known
