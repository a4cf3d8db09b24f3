"""Candidates run by processes of their own: none twice, and those that break or hang one are told."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import pytest

from paceline.recipes.nsa import tile_trials
from paceline.recipes.nsa.tile_trials import Job, Trial, share_out
from paceline.recipes.nsa.tiles import KERNELS
from tests.recipes.nsa.tuned import CASE

_PROCESS = """
import json, os, sys, time
told = json.loads(sys.argv[1])
if told.get("fails"):
    sys.exit(3)
print(0, flush=True)
for done, (kernel, tile) in enumerate(told["jobs"], 1):
    if kernel == "breaks":
        os.abort()
    if kernel == "hangs":
        time.sleep(60)
    with open(told["log"], "a") as log:
        print(kernel, tile, file=log)
    print(done, flush=True)
"""
"""what stands for one that runs kernels"""


def test_candidates_are_shared_out_so_that_none_is_compiled_twice() -> None:
    for processes in (1, 3, 16, 1000):
        shares = share_out(CASE, processes)
        assert len(shares) <= processes
        jobs = [(kernel, str(tile)) for share in shares for kernel, tile in share]
        assert sorted(jobs) == sorted(
            (kernel, str(tile)) for kernel in CASE.kernels for tile in CASE.candidates(kernel)
        )
        owners: dict[str, set[int]] = {}
        for number, share in enumerate(shares):
            for kernel, tile in share:
                owners.setdefault(f"{KERNELS[kernel]} {tile}", set()).add(number)
        assert all(len(numbers) == 1 for numbers in owners.values())
    assert len(share_out(CASE, 0)) == 1, "no memory for any: one process does it all"
    assert len(share_out(replace(CASE, dtype="float32"), 4)) == 4


def jobs_of(*kernels: str) -> list[Job]:
    return [(kernel, {"BM": number}) for number, kernel in enumerate(kernels)]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(tile_trials, "_HUNG_S", 2)
    return [sys.executable, "-c", _PROCESS]


def test_what_breaks_or_hangs_is_told_and_the_rest_is_run(command: list[str], tmp_path) -> None:
    log = tmp_path / "log"
    jobs = jobs_of("good", "breaks", "good", "hangs", "good", "breaks")
    trial = Trial(command, {"log": str(log)}, jobs)
    assert trial.wait(None) == [jobs[1], jobs[3], jobs[5]]
    assert log.read_text().splitlines() == ["good {'BM': 0}", "good {'BM': 2}", "good {'BM': 4}"]


def test_at_the_deadline_nobody_is_blamed(command: list[str], tmp_path) -> None:
    trial = Trial(command, {"log": str(tmp_path / "log")}, jobs_of("good", "hangs"))
    assert trial.wait(time.monotonic() + 0.5) == []
    assert trial._process.returncode is not None, "it is ended"


def test_one_that_does_not_even_begin_blames_nobody(command: list[str]) -> None:
    begin = time.monotonic()
    assert Trial(command, {"fails": True}, jobs_of(*["good"] * 50)).wait(None) == []
    assert time.monotonic() - begin < 30, "and is not begun again for each"
