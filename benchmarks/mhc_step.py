"""What mHC adds to a training step on one GPU, by CUDA events: medians over replays of a CUDA graph, forward and backward.

python benchmarks/mhc_step.py --kernels              # streams in fp32
python benchmarks/mhc_step.py --dtype bfloat16 --search 40

First the whole model's step without and with mHC, in bf16 autocast, without the optimizer; then one connection, in a chain of them
around layers that do nothing: the fused kernels, and with --plain hyper.py's tensor functions. --kernels lists the time of each kernel,
--search tries other tiles for so many seconds. Compiling the kernels takes half a minute, once.
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
from paceline.recipes.sasrec.config import Loss, Model
from paceline.recipes.sasrec.hyper_fused import TILES, Tile, fused_read, fused_write
from paceline.recipes.sasrec.losses import build_loss
from paceline.recipes.sasrec.recommender import Recommender

ITERATIONS = 20
CHAIN = 4
OTHERS = {
    "project": [Tile(32, 32, 2), Tile(64, 32, 4)],
    "write": [Tile(16, 128, 4), Tile(4, 128, 4)],
    "write_backward": [Tile(8, 32, 1), Tile(8, 32, 2), Tile(16, 32, 4)],
    "dots": [Tile(8, 32, 1), Tile(8, 32, 2), Tile(16, 32, 4)],
    "read_backward": [Tile(2, 128, 1), Tile(8, 128, 2)],
    "project_backward": [Tile(64, 64, 4, 3), Tile(32, 32, 4, 4), Tile(32, 64, 4, 4)],
    "project_bf16": [Tile(64, 128, 4, 2), Tile(64, 64, 4, 2), Tile(128, 64, 8, 2)],
    "dots_bf16": [Tile(2, 128, 1), Tile(4, 128, 1), Tile(8, 64, 2)],
    "spread_bf16": [Tile(128, 128, 8), Tile(64, 256, 8)],
    "read_backward_bf16": [Tile(4, 128, 1), Tile(8, 128, 2), Tile(4, 128, 2)],
    "project_backward_bf16": [Tile(32, 64, 4, 3), Tile(64, 128, 4, 3), Tile(128, 64, 4, 3)],
}
ITEMS, ROWS, LENGTH = 3_416, 128, 200
"""of the whole model's step"""

Connection = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def plain(x_TnD: Tensor, project_MK: Tensor, gates_3: Tensor, bias_M: Tensor) -> Tensor:
    pre_Tn, post_Tn, res_Tnn = hyper.mappings(hyper.project_streams(x_TnD, project_MK), gates_3, bias_M, ITERATIONS)
    return hyper.write_streams(x_TnD, res_Tnn, post_Tn, hyper.read_streams(x_TnD, pre_Tn))


def fused(x_TnD: Tensor, project_MK: Tensor, gates_3: Tensor, bias_M: Tensor) -> Tensor:
    read_TD, mixed_TnD, post_nT, res_nnT = fused_read(x_TnD, project_MK, gates_3, bias_M, ITERATIONS, 1e-6)
    return fused_write(mixed_TnD, post_nT, res_nnT, read_TD)


def build_model_step(arguments: argparse.Namespace, mhc: bool) -> Callable[[], object]:
    torch.manual_seed(0)
    config = Model(
        width=arguments.width,
        mhc=mhc,
        streams=arguments.streams,
        positions="rotary",
        mhc_fp32=arguments.dtype == "float32",
    )
    model = Recommender(ITEMS, LENGTH, config, build_loss(Loss(), ITEMS, None), "sdpa").cuda().train()
    events_BL = torch.randint(1, ITEMS + 1, (ROWS, LENGTH + 1), device="cuda")
    batch = {"items": events_BL[:, :-1].contiguous(), "targets": events_BL[:, 1:].contiguous()}

    def step() -> object:
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            loss = model(batch) / batch["targets"].numel()
        return torch.autograd.grad(loss, list(model.parameters()))

    return step


def build_step(connection: Connection, arguments: argparse.Namespace) -> Callable[[], object]:
    dtype = getattr(torch, arguments.dtype)
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
    """Median microseconds of a step."""
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
        times.append(begin.elapsed_time(end) * 1000)
    del kept
    return statistics.median(times[5:])


def print_kernels(step: Callable[[], object], parts: int) -> None:
    """Of each kernel the time of a launch, how often it is launched in a step's part, and the product."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        for _ in range(5):
            step()
        torch.cuda.synchronize()
    events = [event for event in profile.key_averages() if event.self_device_time_total > 0]
    for event in sorted(events, key=lambda event: -event.self_device_time_total):
        each_us, launches = event.self_device_time_total / event.count, event.count / 5 / parts
        if each_us * launches >= 1:
            print(f"    {each_us:8.1f} µs × {launches:<4.3g} = {each_us * launches:7.1f}  {event.key[:90]}")


def search(step: Callable[[], object], seconds: float) -> None:
    until = time.monotonic() + seconds
    for name, others in OTHERS.items():
        usual, found = TILES[name], []
        for tile in [usual, *others]:
            if time.monotonic() > until:
                break
            TILES[name] = tile
            try:
                found.append((measure_us(step, 15) / CHAIN, tuple(tile)))
            except Exception as error:  # too many registers, or too much shared memory: the next one, please
                found.append((float("inf"), (*tile, type(error).__name__)))
        TILES[name] = usual
        print(f"    {name}: " + "  ".join(f"{tile} {us:.1f}" for us, tile in found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--tokens", type=int, default=25_600)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the streams")
    parser.add_argument("--plain", action="store_true", help="measure the tensor functions too")
    parser.add_argument("--kernels", action="store_true", help="the time of each kernel")
    parser.add_argument("--search", type=float, default=0, metavar="SECONDS", help="try other tiles")
    arguments = parser.parse_args()
    assert hyper_fused.fused_available(torch.empty(1, arguments.streams, arguments.width, device="cuda"))
    # As the engine does with precision.tf32.
    torch.backends.cuda.matmul.allow_tf32 = True
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: {arguments.streams} streams in {arguments.dtype}, "
        f"width {arguments.width}"
    )
    without, with_mhc = (build_model_step(arguments, mhc) for mhc in (False, True))
    without_us, with_us = measure_us(without), measure_us(with_mhc)
    print(
        f"whole model: {without_us:.0f} µs without, {with_us:.0f} µs with mHC: {with_us - without_us:+.0f} µs, "
        f"× {with_us / without_us:.3f}",
        flush=True,
    )
    if arguments.kernels:
        print_kernels(with_mhc, 1)
    step = build_step(fused, arguments)
    print(f"a connection: {measure_us(step) / CHAIN:.1f} µs of {arguments.tokens} tokens", flush=True)
    if arguments.kernels:
        print_kernels(step, CHAIN)
    if arguments.plain:
        print(f"by tensor functions: {measure_us(build_step(plain, arguments)) / CHAIN:.1f} µs", flush=True)
    if arguments.search:
        search(step, arguments.search)


if __name__ == "__main__":
    main()
