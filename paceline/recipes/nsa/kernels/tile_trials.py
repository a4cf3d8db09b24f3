"""Tiles that may be the fastest, run once each by processes of their own: what they compile lies in Triton's cache on the disk afterwards, and a
tile that breaks its process, or hangs it, breaks no other.

    try_candidates(case, device, deadline).outcomes     -> [(("window_forward", {"BM": 64, …}), ""), (("window_key_gradient", {…}), "it hung …")]
    python -m paceline.recipes.nsa.kernels.tile_trials '{"device": 0, "case": {…}, "jobs": [["window_forward", {…}], …]}'

Such a process prints a line of JSON when it has begun, and one after each tile.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from paceline.cores import cpu_count
from paceline.engine.out_of_memory import is_out_of_memory
from paceline.parentage import die_with_parent
from paceline.recipes.nsa.kernels.chosen_attention import most_parts
from paceline.recipes.nsa.kernels.fast_frame import fast
from paceline.recipes.nsa.kernels.fast_path import FAST
from paceline.recipes.nsa.kernels.stage_runs import Inputs, build_runs, draw_inputs
from paceline.recipes.nsa.kernels.tile_store import Case
from paceline.recipes.nsa.kernels.tiles import KERNELS, Tile, Tiles
from paceline.recipes.nsa.pattern import Pattern

Job = tuple[str, Tile]
"""a kernel, and a tile for it"""
Outcome = tuple[Job, str]
"""what was run, and why it must not be run again; empty where nothing speaks against it"""
_HUNG_S = 60
"""without a tile done: compiling one takes seconds"""
_LOOK_S = 0.05
_TOLD = 160
"""characters of what a process or a compiler said at its end"""
_ERROR = re.compile(r"[\w.]+( error|Error|Exception):|ptxas (fatal|error)")


@dataclass(frozen=True)
class Tried:
    outcomes: Sequence[Outcome]
    """of all that were run"""
    complaints: Sequence[str] = ()
    """of processes that did not begin, so that nothing is known of their candidates"""


def try_candidates(case: Case, device: torch.device, deadline: float | None) -> Tried:
    """What was run by then. By as many processes as there are cores and memory for, one at least."""
    told = {"device": device.index or 0, "case": asdict(case)}
    shares = share_out(case, min(cpu_count(), _count_fitting(case, device)))
    return run_trials([Trial([sys.executable, "-m", __name__], told, jobs) for jobs in shares], deadline)


def run_trials(trials: Sequence[Trial], deadline: float | None) -> Tried:
    """Side by side, until all have ended, or the deadline."""
    try:
        for trial in trials:
            trial.begin()
        # All are looked at, not only up to the first that goes on.
        while sum(trial.look() for trial in trials) and (deadline is None or time.monotonic() < deadline):
            time.sleep(_LOOK_S)
    finally:
        for trial in trials:
            trial.end()
    complaints = dict.fromkeys(trial.complaint for trial in trials if trial.complaint)
    return Tried([outcome for trial in trials for outcome in trial.outcomes], list(complaints))


class Trial:
    """A process, with the candidates that it is to run; one that breaks is followed by another, for those behind the one that broke it."""

    def __init__(self, command: Sequence[str], told: Mapping[str, Any], jobs: Sequence[Job]) -> None:
        self.outcomes: list[Outcome] = []
        self._command, self._told, self._jobs = command, told, list(jobs)
        self.complaint = ""
        """why a process did not begin"""
        self._process: subprocess.Popen[str] | None = None

    def look(self) -> bool:
        """Whether it goes on; one that broke or hung is seen to."""
        if self._process is None:
            return False
        is_hung = time.monotonic() > self._heard + _HUNG_S
        if self._process.poll() is None and not is_hung:
            return True
        code = self._process.returncode
        self.end()
        if code == 0 or not self._jobs:
            return False
        if not self._lines:
            # That has other reasons than a tile: with the next it would be the same.
            why = f"{_HUNG_S} s without a word" if code is None else self._last_word
            self.complaint = f"a process for them did not begin ({why})"
            return False
        reason = f"it hung its process for {_HUNG_S} s" if code is None else f"it broke its process ({self._last_word})"
        self.outcomes.append((self._jobs.pop(0), reason))
        if self._jobs:
            self.begin()
        return self._process is not None

    def end(self) -> None:
        """Of the process, with what it started; what it was through with counts."""
        if self._process is None:
            return
        # A compiler that it started has its output, and would be waited for.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        self._process = None
        # The first line says that it has begun.
        done = self._lines[1:]
        self.outcomes += [(job, "") for job, line in zip(self._jobs, done, strict=False) if line["ran"]]
        self._jobs = self._jobs[len(done) :]
        self._errors.seek(0)
        self._last_word = tell_end(self._errors.read().decode(errors="replace"))
        self._errors.close()

    def begin(self) -> None:
        self._lines: list[dict[str, Any]] = []
        self._heard = time.monotonic()
        with contextlib.ExitStack() as until_begun:
            self._errors = until_begun.enter_context(tempfile.TemporaryFile())
            self._process = subprocess.Popen(
                [*self._command, json.dumps({**self._told, "jobs": self._jobs})],
                stdout=subprocess.PIPE, stderr=self._errors, text=True, start_new_session=True,
            )  # fmt: skip
            until_begun.pop_all()
        self._reader = threading.Thread(target=self._listen, args=[self._process], daemon=True)
        self._reader.start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                # What else is printed there, as by a compiler that was asked for its output, is none of ours.
                with contextlib.suppress(json.JSONDecodeError, TypeError, KeyError):
                    self._lines.append({"ran": json.loads(line)["ran"]})
                    self._heard = time.monotonic()


def share_out(case: Case, processes: int) -> list[list[Job]]:
    """All candidates among so many processes; the same kernel with the same tile is one process's, for whichever branch."""
    by_compiled: dict[str, list[Job]] = {}
    for kernel in case.kernels:
        for tile in case.candidates(kernel):
            by_compiled.setdefault(f"{KERNELS[kernel]} {tile}", []).append((kernel, tile))
    groups, processes = list(by_compiled.values()), max(1, processes)
    shares = [[job for group in groups[i::processes] for job in group] for i in range(processes)]
    return [share for share in shares if share]


def _count_fitting(case: Case, device: torch.device) -> int:
    """Processes that the GPU has memory for: tensors of the size of the queries, what queries found, and torch itself."""
    queries = case.rows * case.length * case.heads * case.head_width * case.torch_dtype.itemsize
    found = min(case.pattern.selected * queries, most_parts(device))
    return int(torch.cuda.mem_get_info(device)[0] // (12 * queries + found + 3 * 2**30))


def prepare_pass(inputs: Inputs, kernel: str, tile: Tile) -> Callable[[], Sequence[Tensor]]:
    """What computes the forward or backward that a kernel is part of, with this tile and all others built in; what comes before it is done."""
    tiles = Tiles({kernel: tile}, inputs.case.torch_dtype)
    frame = replace(fast(inputs.frame), tiles=tiles)
    forward, flows_to = build_runs(inputs, FAST, frame)[kernel.partition("_")[0]]
    if kernel.endswith("gradient"):
        found = forward()
        # Numbers drawn at random, as the stages' own: of equal ones a kernel that turns them round would not be found out.
        return partial(torch.autograd.grad, found, flows_to, [inputs.branches[0].detach()])
    return torch.no_grad()(forward)


def tell_end(said: str) -> str:
    """The last error, else the last line, or as much of it as may stand in a reason, which goes into events and checkpoints."""
    lines = said.strip().splitlines()
    # What torch and Triton add below theirs is the same for every error.
    errors = [line for line in lines if _ERROR.match(line)]
    return (errors or lines or ["without a word"])[-1][:_TOLD]


def is_unfit(error: Exception) -> bool:
    """Whether Triton says that it cannot make such a kernel; all else is no fault of the tile's size."""
    from triton.errors import TritonError

    # So a pass of Triton's compiler says that it failed.
    return isinstance(error, TritonError) or "PassManager::run failed" in str(error)


def main(argv: Sequence[str]) -> int:
    told: dict[str, Any] = json.loads(argv[0])
    case = Case(**told["case"] | {"pattern": Pattern(**told["case"]["pattern"])})
    device = torch.device("cuda", told["device"])
    torch.cuda.set_device(device)
    inputs = draw_inputs(case, FAST, device)
    _say(ran=False)
    for kernel, tile in told["jobs"]:
        ran = True
        try:
            prepare_pass(inputs, kernel, tile)()
            torch.cuda.synchronize()
        except Exception as error:
            # Of memory others, who share the GPU, may have left too little: nothing is known of the tile then.
            ran = not is_out_of_memory(error)
            if ran and not is_unfit(error):
                raise
        _say(ran=ran)
    return 0


def _say(ran: bool) -> None:
    print(json.dumps({"ran": ran}), flush=True)


if __name__ == "__main__":
    die_with_parent(os.getppid())
    sys.exit(main(sys.argv[1:]))
