"""A training loop of one's own that writes a Paceline run directory: what the SDK adds is marked.

    python examples/plain_loop.py --out runs/plain
    torchrun --nproc-per-node 2 examples/plain_loop.py --out runs/plain-2
    paceline stop runs/plain                                   # from another terminal
    paceline watch runs/plain-2 --halt-on-stall                # from another terminal

Started again with the same --out, it goes on from its own checkpoint, as a further attempt of the same run, bit for bit.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline import start_run  # the SDK


def generate(num_samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of 16 numbers, and which side of a curved border they lie on."""
    points = torch.randn(num_samples, 16, generator=torch.Generator().manual_seed(seed))
    return points, (points[:, 0] * points[:, 1] + points[:, 2] > 0).long()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/plain"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64, help="samples per step and rank")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--save-every", type=int, default=50)
    arguments = parser.parse_args()

    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2))
    model = DistributedDataParallel(plain) if world_size > 1 else plain
    optimizer = torch.optim.AdamW(plain.parameters(), lr=arguments.lr)
    points, labels = generate(4096, seed=1)
    held_points, held_labels = generate(1024, seed=2)

    # One pass for nothing: only after the first one DDP has the buckets, and so the order of its sums, that it keeps. Without this a
    # run that was resumed would differ from one that was not in its last bits, from 3 ranks on.
    nn.functional.cross_entropy(model(points[:1]), labels[:1]).backward()

    saved, first_step = arguments.out.with_suffix(".pt"), 0
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        plain.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_step = state["step"]

    config = {"batch": arguments.batch, "optimizer": {"lr": arguments.lr}, "steps": arguments.steps}
    run = start_run(  # the SDK: every rank, with the same arguments
        arguments.out, config, may_change=["steps"], start_step=first_step, total_steps=arguments.steps
    )
    with run:
        for step in range(first_step + 1, arguments.steps + 1):
            with run.phase("data"):  # phases are optional: without them a step has one time
                order = torch.Generator().manual_seed(step * world_size + rank)
                chosen = torch.randint(len(points), (arguments.batch,), generator=order)
                batch, answers = points[chosen], labels[chosen]
            with run.phase("forward"):
                loss = nn.functional.cross_entropy(model(batch), answers)
            with run.phase("backward"):
                optimizer.zero_grad()
                loss.backward()
            with run.phase("optimizer"):
                optimizer.step()
            run.step(loss=loss, samples=arguments.batch, lr=arguments.lr, epoch=0)  # the SDK
            if step % 50 == 0 or step == arguments.steps:
                with run.phase("evaluate"), torch.no_grad():
                    accuracy = (plain(held_points).argmax(1) == held_labels).float().mean()
                    run.validation(accuracy=accuracy, num_samples=len(held_labels))
            is_last = (
                step == arguments.steps or run.should_stop
            )  # `paceline stop`: all ranks here are told at the same step
            if rank == 0 and (is_last or step % arguments.save_every == 0):
                with run.phase("checkpoint"):
                    state = {"model": plain.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    torch.save(state, f"{saved}.new")
                    os.replace(f"{saved}.new", saved)  # whoever is killed in the middle leaves the old one
                run.event("checkpoint", step=step, name=saved.name)
            if is_last:
                break
    print(f"rank {rank}: {run.last_step} steps, {run.path}")
    if world_size > 1:
        # DDP first: if it is the last to let go of the group, it waits for the group's thread, which may wait for Python's lock.
        del model
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
