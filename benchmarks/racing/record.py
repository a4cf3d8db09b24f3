"""Records small real sweeps, interleaved in rounds, for the traces that `paceline bench racing` replays.

    python -m benchmarks.racing.record workers --repeats 4 --out benchmarks/racing/recorded

Every trial is a `paceline train` of its own, so start-up, the luck of a process, the drift of the machine and its outliers are all in
the record. What else runs on the machine is wanted: it is what sweeps meet.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from paceline.files import write_text
from paceline.telemetry.reader import read_run

STEPS, WARMUP_STEPS, WINDOW = 160, 8, 8
FIXED = [
    "data.users=11000",
    "data.max_length=25",
    "model.width=32",
    "train.epochs=1",
    f"train.max_steps={STEPS + WARMUP_STEPS}",
    f"telemetry.log_every={WINDOW}",
    "telemetry.tensorboard=false",
    "evaluate.every_epochs=null",
    "evaluate.max_samples=64",
    "checkpoint.enabled=false",
]
SWEEPS: dict[str, tuple[int, dict[str, list[Any]]]] = {
    "threads": (1, {"launch.omp_threads": [1, 2], "train.micro_batch": [16, 32, 64]}),
    "buckets": (2, {"parallel.bucket_mb": [0.05, 1, 25], "parallel.compression": ["none", "fp16"]}),
    "loading": (1, {"data.num_workers": [0, 2], "train.optimizer.lr": [0.005, 0.5]}),
}
"""ranks, axes; "loading" learns too fast in half of its cases, so that there is a worse loss on record, too"""


def run_trial(nproc: int, case: dict[str, Any], root: Path) -> dict[str, Any]:
    overrides = [f"{key}={value}" for key, value in case.items()]
    if case.get("data.num_workers"):
        overrides.append("data.placement=host")
    if "launch.omp_threads" not in case:
        overrides.append("launch.omp_threads=1")
    command = [sys.executable, "-m", "paceline", "train", "sasrec", *FIXED, *overrides]
    began = time.time()
    done = subprocess.run(
        [*command, "--nproc", str(nproc), "--out", str(root)], capture_output=True, text=True, timeout=300, check=False
    )
    wall_s = time.time() - began
    rows = read_run(root).metrics if (root / "metrics.csv").exists() else []
    counted = [row for row in rows if int(row["step"]) > WARMUP_STEPS]
    warm = [row for row in rows if int(row["step"]) == WARMUP_STEPS]
    if done.returncode or not counted:
        return {"status": "failed", "began": began, "wall_s": wall_s, "said": done.stderr[-300:]}
    return {
        "status": "ok",
        "began": began,
        "wall_s": round(wall_s, 3),
        "startup_s": round(float(warm[0]["time"]) - began, 3),
        "windows": [round(float(row["samples_per_s"]), 2) for row in counted],
        "losses": [[int(row["samples"]), round(float(row["loss"]), 5)] for row in rows],
        "memory_gib": round(max(float(row["memory_gib"]) for row in rows), 4),
    }


def record(name: str, repeats: int, seed: int) -> dict[str, Any]:
    nproc, axes = SWEEPS[name]
    cases = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    trials: list[dict[str, Any]] = []
    generator = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="paceline-record-") as scratch:
        for round_number in range(1, repeats + 1):
            for index in generator.sample(range(len(cases)), len(cases)):
                trial = run_trial(nproc, cases[index], Path(scratch) / f"{round_number}-{index}")
                trials.append({"case": index, "round": round_number, **trial})
                print(name, round_number, cases[index], trial["status"], f"{trial['wall_s']:.1f} s", file=sys.stderr)
    first = trials[0]["began"]
    for trial in trials:
        trial["began"] = round(trial["began"] - first, 2)
    shape = {"steps": STEPS, "warmup_steps": WARMUP_STEPS, "window": WINDOW}
    return {"v": 1, "name": name, "seed": seed, "nproc": nproc, **shape, "cases": cases, "trials": trials}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="+", choices=sorted(SWEEPS))
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.sweeps:
        found = record(name, given.repeats, given.seed)
        write_text(given.out / f"{name}.json", json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
