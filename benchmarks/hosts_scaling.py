"""What a second host brings over gloo: samples per second of one rank, of two on one host, and of two hosts with one each, in turns.

    python -m benchmarks.hosts_scaling --rounds 3

The hosts are network namespaces of this machine (root, `ip`, `unshare`), so that they share its cores: no more is to be had than two
cores give, and the switch between them is memory. The load of the machine stands beside each figure.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import tempfile
from pathlib import Path

from tests.integration.hosts import PORT, Host, Switch, cannot_build

WORDS = ["train", "sasrec", "train.epochs=null", "train.global_batch=256", "evaluate.every_epochs=null"]
WORDS += ["checkpoint.every_epochs=null", "telemetry.tensorboard=false", "telemetry.log_every=5"]
_ONE_CORE = {"OMP_NUM_THREADS": "1"}
_LONGEST_S = 600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150)
    arguments = parser.parse_args()
    if cannot_build():
        parser.error(cannot_build())
    rates: dict[tuple[int, int], list[float]] = {(1, 1): [], (1, 2): [], (2, 1): []}
    with tempfile.TemporaryDirectory() as folder, Switch(2, Path(folder)) as hosts:
        for number in range(arguments.rounds):
            for (num_hosts, nproc), found in rates.items():
                root = Path(folder) / f"{number}-{num_hosts}-{nproc}"
                found.append(_train(hosts[:num_hosts], nproc, arguments.steps, root))
                load = os.getloadavg()[0]
                print(f"{num_hosts} × {nproc}: {found[-1]:,.0f} samples/s (load {load:.1f})", flush=True)
    alone = statistics.median(rates[1, 1])
    for (num_hosts, nproc), found in rates.items():
        middle = statistics.median(found)
        print(f"{num_hosts} hosts × {nproc} ranks: median {middle:,.0f}, {middle / alone:.2f} of one rank")


def _train(hosts: list[Host], nproc: int, steps: int, root: Path) -> float:
    """The median rate after the first windows."""
    words = [*WORDS, f"train.max_steps={steps}", "--nproc", str(nproc), "--out", str(root)]
    if len(hosts) > 1:
        words += ["--nnodes", str(len(hosts)), "--rdzv", f"{hosts[0].address}:{PORT}"]
    for host in hosts:
        host.start(*words, environment=_ONE_CORE)
    for host in hosts:
        code = host.wait(_LONGEST_S)
        assert code == 0, host.text()
    with open(root / "metrics.csv", encoding="utf-8") as file:
        rows = [float(row["samples_per_s"]) for row in csv.DictReader(file) if row["samples_per_s"]]
    return statistics.median(rows[3:])


if __name__ == "__main__":
    main()
