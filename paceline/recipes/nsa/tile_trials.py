"""Tiles that may be the fastest, run once each by processes of their own: what they compile lies in Triton's cache on the disk afterwards, and a
tile that breaks its process, or hangs it, breaks no other.

    broken = try_candidates(case, device, deadline)                              -> [("window_key_gradient", {"BM": 64, …})]
    python -m paceline.recipes.nsa.tile_trials '{"device": 0, "case": {…}, "jobs": [["window_forward", {…}], …]}'

Such a process prints how many it is through with: 0 when it has begun, then after each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from paceline.cores import cpu_count
from paceline.parentage import die_with_parent
from paceline.recipes.nsa.chosen_attention import most_parts
from paceline.recipes.nsa.fast_frame import fast
from paceline.recipes.nsa.fast_path import FAST
from paceline.recipes.nsa.pattern import Pattern
from paceline.recipes.nsa.stage_runs import Inputs, build_runs, draw_inputs
from paceline.recipes.nsa.tile_store import Case
from paceline.recipes.nsa.tiles import KERNELS, Tile, Tiles

Job = tuple[str, Tile]
"""a kernel, and a tile for it"""
_HUNG_S = 120
"""without a tile done: compiling one takes seconds"""


def try_candidates(case: Case, device: torch.device, deadline: float | None) -> list[Job]:
    """Those that broke or hung the process that ran them. By as many processes as there are cores and memory for, one at least; what they leave
    undone at the deadline is compiled when it is timed."""
    told = {"device": device.index or 0, "case": asdict(case)}
    shares = share_out(case, min(cpu_count(), _count_fitting(case, device)))
    trials = [Trial([sys.executable, "-m", __name__], told, jobs) for jobs in shares]
    return [job for trial in trials for job in trial.wait(deadline)]


class Trial:
    """A process, with the candidates that it is to run; one that breaks is followed by another, for those behind the one that broke it."""

    def __init__(self, command: Sequence[str], told: Mapping[str, Any], jobs: Sequence[Job]) -> None:
        self._command, self._told, self._jobs = command, told, list(jobs)
        self._begin()

    def wait(self, deadline: float | None) -> list[Job]:
        """Until all are tried, or the deadline: those that broke or hung it."""
        broken: list[Job] = []
        while self._is_going_on(deadline):
            time.sleep(0.05)
            if self._process.poll() is None and time.monotonic() < self._heard + _HUNG_S:
                continue
            self._end()
            # One that did not even begin has other reasons: with the next it would be the same.
            if self._process.returncode == 0 or self._done < 0:
                return broken
            self._jobs = self._jobs[self._done :]
            broken += self._jobs[:1]
            self._jobs = self._jobs[1:]
            if self._jobs:
                self._begin()
        self._end()
        return broken

    def _is_going_on(self, deadline: float | None) -> bool:
        return bool(self._jobs) and (deadline is None or time.monotonic() < deadline)

    def _begin(self) -> None:
        self._done, self._heard = -1, time.monotonic()
        self._process = subprocess.Popen(
            [*self._command, json.dumps({**self._told, "jobs": self._jobs})],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._listen, args=[self._process], daemon=True)
        self._reader.start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._done, self._heard = int(line), time.monotonic()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()


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
    print(0, flush=True)
    for done, (kernel, tile) in enumerate(told["jobs"], 1):
        try:
            prepare_pass(inputs, kernel, tile)()
            torch.cuda.synchronize()
        except Exception as error:
            if not is_unfit(error):
                raise
        print(done, flush=True)
    return 0


if __name__ == "__main__":
    die_with_parent(os.getppid())
    sys.exit(main(sys.argv[1:]))
