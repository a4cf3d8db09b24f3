"""An exact AUC in several ways, each alone in a process of its own: seconds, CPU seconds and peak memory, by kind of scores.

    python -m benchmarks.auc --scores 64000000 --threads 2

`paceline` is recipes/tenrec/auc.py; the others are what it was chosen from. All must find the same number. `spare` is how many cores' worth
of time the machine had for this process while it counted: well below the threads, the seconds say more about the neighbours.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

Arrays = np.ndarray[Any, Any]
KINDS = {
    "random, 30 % positive": 0.3,
    "random, 0.1 % positive": 0.001,
    "tied: 100 values": 0.1,
    "sorted": 0.1,
    "all within 1e-5 of 0.5": 0.3,
    "from 1e-20 to 1e20": 0.3,
    "float64": 0.3,
}


def draw(kind: str, size: int) -> tuple[Arrays, Arrays]:
    rng = np.random.default_rng(0)
    scores: Arrays = rng.standard_normal(size, dtype=np.float32)
    labels = rng.random(size, dtype=np.float32) < KINDS[kind]
    if kind.startswith("tied"):
        np.round(scores, 1, out=scores)
    elif kind == "sorted":
        scores.sort()
    elif kind.startswith("all within"):
        scores = np.float32(0.5) + scores * np.float32(1e-5)
    elif kind.startswith("from"):
        scores = np.exp(scores * np.float32(10))
    elif kind == "float64":
        scores = rng.standard_normal(size)
    return scores, labels


def by_paceline(scores: Arrays, labels: Arrays, threads: int) -> float:
    from paceline.recipes.tenrec.auc import auc

    return auc(scores, labels, threads)


def by_two_sorts(scores: Arrays, labels: Arrays, threads: int) -> float:
    """Each side sorted as a whole in a thread of its own, the smaller one looked up in the other."""
    sides = [scores[labels], scores[~labels]]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda side: side.sort(), sides))
        positives, negatives = sides
        few, many = sorted(sides, key=len)
        parts = np.array_split(few, threads)
        tasks = [(part, how) for part in parts for how in ("left", "right")]
        found = sum(pool.map(lambda task: int(many.searchsorted(*task).sum()), tasks))
    pairs = len(positives) * len(negatives)
    return (found if few is positives else 2 * pairs - found) / (2 * pairs)


def by_parts(scores: Arrays, labels: Arrays, threads: int) -> float:
    """The smaller side sorted as a whole, the larger one in parts that a cache holds, counted part by part."""
    sides = [scores[labels], scores[~labels]]
    few, many = sorted(sides, key=len)
    parts = np.array_split(many, max(1, len(many) >> 20))

    def count(part: Arrays) -> int:
        keys, among = sorted((few, part), key=len)
        found = sum(int(among.searchsorted(keys, how).sum()) for how in ("left", "right"))
        return found if keys is few else 2 * len(few) * len(part) - found

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda side: side.sort(), [few, *parts]))
        found = sum(pool.map(count, parts))
    pairs = len(few) * len(many)
    return (found if few is sides[0] else 2 * pairs - found) / (2 * pairs)


def by_halves(scores: Arrays, labels: Arrays, threads: int) -> float:
    """Parts sorted by the lower and then by the upper 16 bits, with their labels; pairs of two parts are counted as `by_parts` does."""
    from paceline.recipes.tenrec.auc import order_keys, upper_half

    if scores.dtype != np.float32:
        raise NotImplementedError

    def sort(part: slice) -> tuple[Arrays, Arrays]:
        keys = order_keys(scores[part], True)
        order = np.argsort((keys & 0xFFFF).astype(np.uint16), kind="stable")
        order = order.take(np.argsort(upper_half(keys).take(order), kind="stable"))
        keys, is_positive = keys.take(order), labels[part].take(order)
        return keys[is_positive], keys[~is_positive]

    step = max(1 << 20, len(scores) // 16)
    with ThreadPoolExecutor(threads) as pool:
        sides = list(pool.map(sort, [slice(start, start + step) for start in range(0, len(scores), step)]))

        def count(pair: tuple[int, int]) -> int:
            positives, negatives = sides[pair[0]][0], sides[pair[1]][1]
            keys, among = sorted((positives, negatives), key=len)
            found = sum(int(among.searchsorted(keys, how).sum()) for how in ("left", "right"))
            return found if keys is positives else 2 * len(positives) * len(negatives) - found

        found = sum(pool.map(count, [(one, other) for one in range(len(sides)) for other in range(len(sides))]))
    return found / (2 * int(labels.sum()) * int((~labels).sum()))


def by_argsort(scores: Arrays, labels: Arrays, threads: int) -> float:
    """What a textbook does: one order of all, ranks with ties in their middle."""
    order = np.argsort(scores)
    ordered, is_positive = scores[order], labels[order]
    ends = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)
    positives = np.diff(np.cumsum(is_positive)[ends], prepend=0)
    negatives = np.diff(ends, prepend=-1) - positives
    below = np.cumsum(negatives) - negatives
    return int(positives @ (2 * below + negatives)) / (2 * int(positives.sum()) * int(negatives.sum()))


def by_torch(scores: Arrays, labels: Arrays, threads: int) -> float:
    """The same with torch's sort, which has the threads."""
    import torch

    torch.set_num_threads(threads)
    ordered, order = torch.sort(torch.from_numpy(scores))
    is_positive = torch.from_numpy(labels)[order]
    ends = torch.cat([torch.nonzero(ordered[1:] != ordered[:-1])[:, 0], torch.tensor([len(ordered) - 1])])
    positives = torch.diff(torch.cumsum(is_positive, 0)[ends], prepend=torch.tensor([0]))
    negatives = torch.diff(ends, prepend=torch.tensor([-1])) - positives
    below = torch.cumsum(negatives, 0) - negatives
    return int((positives * (2 * below + negatives)).sum()) / (2 * int(positives.sum()) * int(negatives.sum()))


WAYS: dict[str, Callable[[Arrays, Arrays, int], float]] = {
    "paceline": by_paceline,
    "two sorts": by_two_sorts,
    "sorted parts": by_parts,
    "16-bit halves": by_halves,
    "argsort": by_argsort,
    "torch.sort": by_torch,
}


def measure(way: str, kind: str, size: int, threads: int) -> dict[str, float]:
    """In this process: the memory is what it needed at most beyond scores, labels and what was imported."""
    WAYS[way](*draw(kind, 1000), threads)  # imports what it needs
    scores, labels = draw(kind, size)
    # What drawing took at most is still in the peak: reset it.
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = _status("VmRSS")
    wall, cpu = time.perf_counter(), time.process_time()
    found = WAYS[way](scores, labels, threads)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"auc": found, "wall_s": wall, "cpu_s": cpu, "peak_gib": (_status("VmHWM") - before) / 2**20}


def _status(name: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(f"{name}:"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scores", type=int, default=64_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--one", nargs=2, help="of this process: a way and a kind")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(*arguments.one, arguments.scores, arguments.threads)))
        return
    print(f"{arguments.scores:,} scores, {arguments.threads} threads; more: beyond scores and labels")
    print(f"{'':26}{'':15}{'seconds':>9}{'CPU':>9}{'spare':>7}{'more GiB':>10}  AUC")
    for kind in arguments.kinds:
        answers = {}
        for way in arguments.ways:
            argv = [sys.executable, "-m", "benchmarks.auc", "--one", way, kind]
            argv += ["--scores", str(arguments.scores), "--threads", str(arguments.threads)]
            done = subprocess.run(argv, capture_output=True, text=True)
            if done.returncode:
                why = "float32 alone" if "NotImplementedError" in done.stderr else done.stderr.strip().splitlines()[-1]
                print(f"{kind:26}{way:15}{why}")
                continue
            row = answers[way] = json.loads(done.stdout)
            times = f"{row['wall_s']:9.2f}{row['cpu_s']:9.2f}{row['cpu_s'] / row['wall_s']:7.1f}{row['peak_gib']:10.2f}"
            print(f"{kind:26}{way:15}{times}  {row['auc']!r}", flush=True)
        assert len({row["auc"] for row in answers.values()}) == 1, f"they differ: {answers}"


if __name__ == "__main__":
    main()
