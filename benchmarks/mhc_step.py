"""What mHC adds to a training step on one GPU: forward and backward of a chain of connections around layers that do nothing.

python benchmarks/mhc_step.py --width 128
python benchmarks/mhc_step.py --kernels --search 40

Each figure is the median over replays of a CUDA graph, per connection, by CUDA events: hyper.py's tensor functions beside the fused
kernels, with the streams in fp32 and in bf16. --kernels lists the time of each kernel, --search tries other tiles for so many seconds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from paceline.recipes.sasrec import hyper, hyper_fused
from paceline.recipes.sasrec.hyper_fused import TILES, Tile, fused_read, fused_write

ITERATIONS = 20
CHAIN = 4
OTHERS = {
    "read_backward": [Tile(32, 64, 8), Tile(32, 32, 4), Tile(64, 32, 8), Tile(16, 128, 8)],
    "dots": [Tile(32, 32, 8), Tile(8, 32, 2), Tile(16, 32, 4, 3), Tile(8, 64, 4)],
    "project": [Tile(64, 64, 4, 3), Tile(32, 64, 4, 3), Tile(64, 32, 4, 4), Tile(128, 32, 8, 3)],
    "project_backward": [Tile(64, 64, 4, 3), Tile(32, 128, 4, 3), Tile(64, 64, 8, 3), Tile(32, 64, 4, 4)],
    "write": [Tile(16, 128, 4), Tile(16, 64, 4), Tile(4, 128, 4), Tile(32, 64, 8)],
    "write_backward": [Tile(16, 64, 4), Tile(32, 32, 8), Tile(8, 128, 4)],
    "read": [Tile(8, 128, 4), Tile(16, 64, 4), Tile(4, 128, 4)],
}

Connection = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def plain(x_TnD: Tensor, project_MK: Tensor, gates_3: Tensor, bias_M: Tensor) -> Tensor:
    pre_Tn, post_Tn, res_Tnn = hyper.mappings(hyper.project_streams(x_TnD, project_MK), gates_3, bias_M, ITERATIONS)
    return hyper.write_streams(x_TnD, res_Tnn, post_Tn, hyper.read_streams(x_TnD, pre_Tn))


def fused(x_TnD: Tensor, project_MK: Tensor, gates_3: Tensor, bias_M: Tensor) -> Tensor:
    read_TD, mixed_TnD, post_nT, res_nnT = fused_read(x_TnD, project_MK, gates_3, bias_M, ITERATIONS, 1e-6)
    return fused_write(mixed_TnD, post_nT, res_nnT, read_TD)


def build_step(connection: Connection, arguments: argparse.Namespace, dtype: torch.dtype) -> Callable[[], object]:
    generator = torch.Generator("cuda").manual_seed(0)
    tokens, n, width = arguments.tokens, arguments.streams, arguments.width
    numbers = 2 * n + n * n

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device="cuda")

    x_TnD = normal(tokens, n, width).to(dtype).requires_grad_()
    gradient_TnD = normal(tokens, n, width).to(dtype)
    parameters = [
        (
            (normal(numbers, n * width) * 0.02).requires_grad_(),
            torch.full((3,), 0.01, device="cuda", requires_grad=True),
            normal(numbers).requires_grad_(),
        )
        for _ in range(CHAIN)
    ]

    def step() -> object:
        hidden_TnD = x_TnD
        for each in parameters:
            hidden_TnD = connection(hidden_TnD, *each)
        leaves = [x_TnD, *(value for each in parameters for value in each)]
        return torch.autograd.grad(hidden_TnD, leaves, gradient_TnD)

    return step


def measure_us(step: Callable[[], object], replays: int = 30) -> float:
    """Median microseconds per connection."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = step()
    times = []
    for _ in range(replays + 5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / CHAIN)
    del kept
    return statistics.median(times[5:])


def print_kernels(step: Callable[[], object]) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(5):
            step()
        torch.cuda.synchronize()
    events = [event for event in profile.key_averages() if event.self_device_time_total > 0]
    for event in sorted(events, key=lambda event: -event.self_device_time_total):
        each_us = event.self_device_time_total / event.count
        print(f"    {each_us:8.1f} µs × {event.count / 5 / CHAIN:.2g}  {event.key[:90]}")


def search(arguments: argparse.Namespace, dtype: torch.dtype, seconds: float) -> None:
    step, until = build_step(fused, arguments, dtype), time.monotonic() + seconds
    for name, others in OTHERS.items():
        usual, found = TILES[name], []
        for tile in [usual, *others]:
            if time.monotonic() > until:
                break
            TILES[name] = tile
            try:
                found.append((measure_us(step, 15), tuple(tile)))
            except Exception as error:  # too many registers, or too much shared memory: the next one, please
                found.append((float("inf"), (*tile, type(error).__name__)))
        TILES[name] = usual
        print(f"    {name}: " + "  ".join(f"{tile} {us:.1f}" for us, tile in found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--tokens", type=int, default=25_600)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--kernels", action="store_true", help="the time of each kernel")
    parser.add_argument(
        "--search", type=float, default=0, metavar="SECONDS", help="try other tiles, per type of the streams"
    )
    arguments = parser.parse_args()
    assert hyper_fused.fused_available(torch.empty(1, arguments.streams, arguments.width, device="cuda"))
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: {arguments.tokens} tokens, "
        f"{arguments.streams} streams, width {arguments.width}"
    )
    for dtype in (torch.float32, torch.bfloat16):
        ours = build_step(fused, arguments, dtype)
        fused_us, plain_us = measure_us(ours), measure_us(build_step(plain, arguments, dtype))
        print(
            f"{dtype}: fused {fused_us:.1f} µs, plain {plain_us:.1f} µs per connection, forward and backward",
            flush=True,
        )
        if arguments.kernels:
            print_kernels(ours)
        if arguments.search:
            search(arguments, dtype, arguments.search)


if __name__ == "__main__":
    main()
