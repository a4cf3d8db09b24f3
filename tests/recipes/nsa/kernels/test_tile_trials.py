"""Candidates run by processes of their own: none twice, and those that break or hang one are told."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from paceline.recipes.nsa.kernels import tile_trials
from paceline.recipes.nsa.kernels.fast_path import FAST
from paceline.recipes.nsa.kernels.tile_trials import Job, Trial, Tried, main, run_trials, share_out, tell_end
from paceline.recipes.nsa.kernels.tiles import KERNELS
from tests.recipes.nsa.kernels.tuned import CASE

_PROCESS = """
import json, os, subprocess, sys, time
told = json.loads(sys.argv[1])
if told.get("fails"):
    sys.exit("a traceback\\nno such device")
print(json.dumps({"ran": False}), flush=True)
print("what a compiler prints", json.dumps([1]), json.dumps(3), sep=chr(10), flush=True)
for kernel, tile in told["jobs"]:
    if kernel == "breaks":
        print("something", "illegal access", sep=chr(10), file=sys.stderr)
        os.abort()
    if kernel == "hangs":
        # As a compiler that has its output.
        subprocess.run(["sleep", "60"])
    with open(told["log"], "a") as log:
        print(kernel, tile, file=log)
    print(json.dumps({"ran": kernel != "no memory"}), flush=True)
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


def test_what_breaks_or_hangs_is_told_and_the_rest_is_run(command: list[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    jobs = jobs_of("good", "breaks", "good", "hangs", "no memory", "good", "breaks")
    tried = run_trials([Trial(command, {"log": str(log)}, jobs)], None)
    assert tried.outcomes == [
        (jobs[0], ""),
        (jobs[1], "it broke its process (illegal access)"),
        (jobs[2], ""),
        (jobs[3], "it hung its process for 2 s"),
        (jobs[5], ""),
        (jobs[6], "it broke its process (illegal access)"),
    ], "of what had no memory nothing is known"
    assert log.read_text().splitlines() == [
        f"{kernel} {tile}" for kernel, tile in jobs if kernel in ("good", "no memory")
    ]


def test_what_broke_beside_a_slow_one_is_told_at_the_deadline(command: list[str], tmp_path: Path) -> None:
    told = {"log": str(tmp_path / "log")}
    slow, broken = jobs_of("good", "hangs"), jobs_of("good", "breaks", "good")
    trials = [Trial(command, told, slow), Trial(command, told, broken)]
    begin = time.monotonic()
    outcomes = run_trials(trials, begin + 1.5).outcomes
    assert time.monotonic() - begin < 20, "nobody waits for what it had started"
    assert outcomes == [
        (slow[0], ""), (broken[0], ""), (broken[1], "it broke its process (illegal access)"), (broken[2], "")
    ]  # fmt: skip
    assert all(not trial.look() for trial in trials), "they are ended"


def test_one_that_does_not_even_begin_blames_no_tile_and_says_why(command: list[str]) -> None:
    begin = time.monotonic()
    jobs = jobs_of(*["good"] * 50)
    tried = run_trials([Trial(command, {"fails": True}, jobs) for _ in range(2)], None)
    assert tried == Tried([], ["a process for them did not begin (no such device)"]), "once"
    assert time.monotonic() - begin < 30, "and is not begun again for each"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("", "without a word"),
        ("some\nillegal access\n", "illegal access"),
        (
            "Traceback (most recent call last):\n  raise\ntorch.AcceleratorError: CUDA error: the device is busy\n"
            "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to …\n",
            "torch.AcceleratorError: CUDA error: the device is busy",
        ),
        (
            "PTXAS error: Internal Triton PTX codegen error\n`ptxas` stderr:\n"
            "ptxas fatal   : (C7600) Register allocation failed with register count of '128'\nRepro command: ptxas -v",
            "ptxas fatal   : (C7600) Register allocation failed with register count of '128'",
        ),
        ("PTXAS error: Internal Triton PTX codegen error\n`ptxas` stderr:\n\nRepro command: ptxas", "PTXAS error: Int"),
        ("ValueError: the first\nDuring handling …\nKeyError: 'the last'", "KeyError: 'the last'"),
        ("x" * 1000, "x" * 160),
    ],
)
def test_of_what_was_said_the_error_is_told(said: str, told: str) -> None:
    assert tell_end(said).startswith(told)
    assert len(tell_end(said)) <= 160


def test_what_cannot_be_begun_leaves_none_running(command: list[str], tmp_path: Path) -> None:
    slow, other = Trial(command, {"log": str(tmp_path / "log")}, jobs_of("hangs")), Trial(["/no/such/program"], {}, [])
    with pytest.raises(FileNotFoundError):
        run_trials([slow, other], None)
    assert not slow.look()


def test_a_process_says_what_it_ran_and_what_it_had_no_memory_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class TooLarge(Exception):
        pass

    def prepare(inputs: object, kernel: str, tile: object) -> Callable[[], None]:
        def run() -> None:
            raise {
                "memory": torch.OutOfMemoryError("CUDA out of memory"),
                "size": TooLarge(),
                "bug": ValueError("no fault of the tile"),
            }[kernel]

        return run if kernel != "good" else lambda: None

    drawn: list[object] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(tile_trials, "draw_inputs", lambda *given: drawn.append(given))
    monkeypatch.setattr(tile_trials, "prepare_pass", prepare)
    monkeypatch.setattr(tile_trials, "is_unfit", lambda error: isinstance(error, TooLarge))

    def tell(*kernels: str) -> str:
        return json.dumps({"device": 1, "case": asdict(CASE), "jobs": [(kernel, {}) for kernel in kernels]})

    assert main([tell("good", "memory", "size", "good")]) == 0
    assert drawn == [(CASE, FAST, torch.device("cuda", 1))]
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert said == [{"ran": ran} for ran in (False, True, False, True, True)], "the first: that it has begun"
    with pytest.raises(ValueError, match="no fault of the tile"):
        main([tell("bug", "good")])
    assert capsys.readouterr().out.count("ran") == 1
