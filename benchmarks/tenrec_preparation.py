"""How fast `paceline prepare tenrec` is, and how much memory it takes: generated rows, a fresh process for each round.

python -m benchmarks.tenrec_preparation --rows 10000000 --ending csv --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from paceline.recipes.tenrec.generate import Generator
from paceline.recipes.tenrec.written import write_generated

_CHILD = """
import resource, sys, time
from paceline.cli.main import run_command

began = time.perf_counter()
code = run_command(["prepare", "tenrec", "--input", sys.argv[1], "--output", sys.argv[2]])
seconds = time.perf_counter() - began
used = resource.getrusage(resource.RUSAGE_SELF)
print(code, seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""


def measure(file: Path, out: Path) -> dict[str, float]:
    """One preparation; `other_cores` is how many cores anybody else kept busy meanwhile."""
    before, began = psutil.cpu_times(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(file), str(out)], capture_output=True, text=True, check=True
    )
    wall_s, after = time.perf_counter() - began, psutil.cpu_times()
    code, seconds, cpu_s, peak_mib = map(float, done.stdout.splitlines()[-1].split())
    assert code == 0, done.stderr
    busy = sum(after) - sum(before) - (after.idle - before.idle) - (after.iowait - before.iowait)
    return {"seconds": seconds, "cpu_s": cpu_s, "peak_mib": peak_mib, "other_cores": (busy - cpu_s) / wall_s}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--ending", choices=["csv", "parquet"], default="csv")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"rows.{given.ending}"
        generator = Generator(max(1, given.rows // 100), max(100, given.rows // 500), given.rows, seed=0)
        write_generated(generator, file, lambda progress: None)
        rounds = [measure(file, Path(folder) / str(number)) for number in range(given.rounds)]
    found = {
        "rows": given.rows,
        "ending": given.ending,
        "cores": os.cpu_count(),
        "rows_per_s": given.rows / statistics.median(one["seconds"] for one in rounds),
        "best_rows_per_s": given.rows / min(one["seconds"] for one in rounds),
        "rows_per_cpu_s": given.rows / statistics.median(one["cpu_s"] for one in rounds),
        "peak_mib": max(one["peak_mib"] for one in rounds),
        "other_cores": statistics.median(one["other_cores"] for one in rounds),
    }
    print(json.dumps({name: round(value, 2) if isinstance(value, float) else value for name, value in found.items()}))


if __name__ == "__main__":
    main()
