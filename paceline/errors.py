"""Every error a user can meet: what went wrong, where, what to do, and the exit code that follows.

    PacelineError              4   training failed
    ├── UsageError             2   a command, flag, path or environment that cannot be used as given
    │   ├── ConfigError        2   one or more wrong values, all reported together
    │   ├── DataError          2   a data file that is missing, empty or malformed (named with its line)
    │   ├── CheckpointError    2   a checkpoint that is damaged, or of another run
    │   ├── OccupiedError      2   a run directory that belongs to another run, or to one that is still alive
    │   └── RendezvousError    2   hosts that did not find each other, or do not fit together
    ├── PreflightError         3   a machine on which training would certainly break
    ├── HaltedError            5   a run that its supervisor ended, because it stood still or made nothing worth keeping
    ├── GateError              6   results that are not what a gate or an acceptance criterion asks for
    ├── StorageError           4   a disk that filled up, or became read-only, under a running job
    ├── NonFiniteError         4   a loss or gradient that is not a number
    ├── OutOfMemoryError       4   a GPU or machine without the memory that was asked for
    ├── DesyncError            4   parameters that are no longer identical on all ranks
    ├── RankLostError          4   a rank that died, or whose peers did
    ├── LoaderError            4   a loader process that died, or from which nothing comes
    └── Interrupted          130   Ctrl-C or SIGTERM

`assert` is for our own mistakes; these are for everybody else's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: what it is, where it was said, what to type instead."""

    what: str
    where: str = ""
    do: str = ""

    def lines(self) -> list[str]:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.do:
            lines.append(f"  do:    {self.do}")
        return lines


class PacelineError(Exception):
    """Base of the tree above; carries one problem or several."""

    exit_code = 4

    def __init__(self, what: str = "", where: str = "", do: str = "", *, problems: Iterable[Problem] = ()) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems) or (Problem(what, where, do),)
        super().__init__("\n".join(p.what for p in self.problems))

    def __str__(self) -> str:
        """Everything, for a traceback: Python itself writes the name of the class before it."""
        blocks = ["\n".join(problem.lines()) for problem in self.problems]
        return blocks[0] if len(blocks) == 1 else "\n".join([f"{len(blocks)} problems:", *blocks])

    def render(self) -> str:
        """The text a person reads on the terminal: one block per problem, errors counted when there are several."""
        blocks = ["\n".join([f"{type(self).__name__}: {p.lines()[0]}", *p.lines()[1:]]) for p in self.problems]
        if len(blocks) > 1:
            blocks.insert(0, f"{len(blocks)} problems:")
        return "\n".join(blocks)

    def to_record(self) -> dict[str, Any]:
        """A plain dictionary, for an event or for the way from a worker to its launcher."""
        return {
            "error": type(self).__name__,
            "exit_code": self.exit_code,
            "problems": [asdict(p) for p in self.problems],
        }


class UsageError(PacelineError):
    exit_code = 2


class ConfigError(UsageError):
    pass


class DataError(UsageError):
    pass


class CheckpointError(UsageError):
    pass


class OccupiedError(UsageError):
    pass


class RendezvousError(UsageError):
    pass


class PreflightError(PacelineError):
    exit_code = 3


class HaltedError(PacelineError):
    exit_code = 5


class GateError(PacelineError):
    exit_code = 6


class StorageError(PacelineError):
    pass


class NonFiniteError(PacelineError):
    pass


class OutOfMemoryError(PacelineError):
    pass


class DesyncError(PacelineError):
    pass


class RankLostError(PacelineError):
    pass


class LoaderError(PacelineError):
    pass


class Interrupted(PacelineError):
    exit_code = 130


_BY_NAME: dict[str, type[PacelineError]] = {
    kind.__name__: kind
    for kind in (
        PacelineError,
        UsageError,
        ConfigError,
        DataError,
        CheckpointError,
        OccupiedError,
        RendezvousError,
        PreflightError,
        HaltedError,
        GateError,
        StorageError,
        NonFiniteError,
        OutOfMemoryError,
        DesyncError,
        RankLostError,
        LoaderError,
        Interrupted,
    )
}


def error_from_record(record: Mapping[str, Any]) -> PacelineError:
    """The error that `to_record` described; an unknown name becomes the base class."""
    kind = _BY_NAME.get(str(record.get("error")), PacelineError)
    return kind(problems=[Problem(**p) for p in record.get("problems", ())])
