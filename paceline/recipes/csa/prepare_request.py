"""What somebody wants prepared, and whether it can be asked for at all. No torch, no numpy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from paceline.cores import cpu_count
from paceline.errors import Problem, UsageError
from paceline.recipes.csa.manifest import MANIFEST
from paceline.recipes.csa.prepare_errors import ERRORS

_RATES = range(1000, 192_001)
_MOST_WORKERS = 64
"""or four for each core, where that is more: a disk across a network keeps more of them busy than there are cores"""


@dataclass(frozen=True)
class Request:
    """What was typed."""

    input: Path
    output: Path
    rate: int = 16000
    trim: bool = False
    top_db: float = 60.0
    manifest: Path | None = None
    """None: manifest.tsv in the output"""
    workers: int | None = None
    """None: one for each core"""

    @property
    def manifest_path(self) -> Path:
        return self.output / (self.manifest.name if self.manifest is not None else MANIFEST)

    @property
    def num_workers(self) -> int:
        return cpu_count() if self.workers is None else self.workers


def check_request(request: Request) -> None:
    """UsageError with everything that cannot be."""
    where = "command line"
    problems = []
    if request.rate not in _RATES:
        what = f"--rate {request.rate} is no sampling rate between {_RATES[0]} and {_RATES[-1]} Hz"
        problems.append(Problem(what, where, "such as --rate 16000"))
    if not (math.isfinite(request.top_db) and request.top_db > 0):
        what = f"--top-db {request.top_db:g} is no distance below the loudest moment"
        problems.append(Problem(what, where, "such as --top-db 60"))
    most = max(_MOST_WORKERS, 4 * cpu_count())
    if not 1 <= request.num_workers <= most:
        what = f"--workers {request.num_workers} is not between 1 and {most} (this machine has {cpu_count()} cores)"
        problems.append(Problem(what, where, f"--workers {cpu_count()}, or leave it out"))
    problems += _misplaced(request)
    if problems:
        raise UsageError(problems=problems)


def _misplaced(request: Request) -> list[Problem]:
    source, target = request.input.resolve(), request.output.resolve()
    problems = []
    if target == source or source in target.parents or target in source.parents:
        what = f"--output {request.output} and --input {request.input} lie within each other"
        problems.append(Problem(what, str(target), "write beside the input: what is prepared must not become input"))
    if request.manifest is not None:
        do = f"--manifest {request.output / request.manifest.name}"
        if request.manifest.parent.resolve() != target:
            what = f"the manifest must lie directly in --output {request.output}, beside what it describes"
            problems.append(Problem(what, f"--manifest {request.manifest}", do))
        elif request.manifest.suffix != ".tsv" or request.manifest.name == ERRORS:
            what = f"a manifest's name ends in .tsv, and {ERRORS} is the report about what was left out"
            problems.append(Problem(what, f"--manifest {request.manifest}", f"--manifest {request.output / MANIFEST}"))
    return problems
