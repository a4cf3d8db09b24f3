"""Preparation of speech beside librosa and soundfile: one process each, in turns, files per second and core; prints a line for each.

    python -m benchmarks.speech_preparation LibriSpeech --rival rivals/bin/python --rounds 21 --top-db 60

`--rival` is a Python that has librosa. Both read every file, resample to 16 kHz mono, trim, and write FLAC; ours also verifies by decoding.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path


def build_rival(root: Path, out: Path, top_db: float) -> Callable[[], None]:
    import librosa
    import soundfile

    def run() -> None:
        for path in sorted(root.glob("*/*/*/*.flac")):
            samples, _ = librosa.load(path, sr=16000, mono=True)
            samples, _ = librosa.effects.trim(samples, top_db=top_db)
            target = out / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(target, samples, 16000, format="FLAC", subtype="PCM_16")

    return run


def build_ours(root: Path, out: Path, top_db: float) -> Callable[[], None]:
    from paceline.recipes.csa.prepare import prepare
    from paceline.recipes.csa.prepare_request import Request

    return lambda: (prepare(Request(root, out, trim=True, top_db=top_db, workers=1), lambda _: None), None)[1]


def serve(name: str, root: Path, top_db: float) -> None:
    """A round for every line that comes in, after one that warms up: [wall, CPU] in seconds."""
    folder = Path(tempfile.mkdtemp())
    out = folder / "out"
    run = (build_rival if name == "librosa" else build_ours)(root, out, top_db)
    try:
        for _ in itertools.chain(["warm-up"], sys.stdin):
            shutil.rmtree(out, ignore_errors=True)
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]), flush=True)
    finally:
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--rival", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--top-db", type=float, default=60.0)
    parser.add_argument("--serve", choices=("librosa", "paceline"))
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.root, arguments.top_db)
        return
    count = len(list(arguments.root.glob("*/*/*/*.flac")))
    pipes = {}
    for name, python in (("librosa", arguments.rival), ("paceline", sys.executable)):
        argv = [python, __file__, str(arguments.root), "--top-db", str(arguments.top_db), "--serve", name]
        pipes[name] = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    times: dict[str, list[list[float]]] = {name: [] for name in pipes}
    for number in range(-1, arguments.rounds):
        for name in list(pipes)[:: 1 if number % 2 else -1]:
            pipe = pipes[name]
            assert pipe.stdin is not None
            assert pipe.stdout is not None
            if number >= 0:
                print("go", file=pipe.stdin, flush=True)
            found = json.loads(pipe.stdout.readline())
            if number >= 0:
                times[name].append(found)
    for pipe in pipes.values():
        pipe.communicate()
    for index, what in enumerate(("wall", "CPU")):
        rates = {name: count / statistics.median(row[index] for row in rows) for name, rows in times.items()}
        ratio = statistics.median(a[index] / b[index] for a, b in zip(*times.values(), strict=True))
        print(f"{what}: {', '.join(f'{name} {rate:.0f} files/s' for name, rate in rates.items())}, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
