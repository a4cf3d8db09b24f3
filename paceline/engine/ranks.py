"""The ranks of this run and how they talk: device, process group, and the few collectives the engine uses by itself.

Gradients are the strategies' business. What is here works on plain numbers on the host, through gloo, whatever the backend of the
device is, and without any process group when there is only one rank.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from paceline.config.sections import Parallel
from paceline.errors import ConfigError, UsageError
from paceline.telemetry.pulse import PulseWriter


@dataclass
class Ranks:
    """Who this process is among the ranks."""

    rank: int
    world_size: int
    device: torch.device
    backend: str
    """nccl, gloo, or none for a single process without a group"""
    backend_reason: str
    pulse: PulseWriter | None = None
    """counts the collectives, when there is one"""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def has_group(self) -> bool:
        return self.backend != "none"

    def all_reduce(self, tensor: torch.Tensor) -> dist.Work | None:
        """Starts the sum of `tensor` over all ranks, in place; wait for it with `finish`."""
        if not self.has_group:
            return None
        if self.pulse:
            self.pulse.enqueue()
        work: dist.Work | None = dist.all_reduce(tensor, async_op=True)
        return work

    def finish(self, work: dist.Work | None) -> None:
        """Waits for a collective (on NCCL: makes the device wait)."""
        if work is not None:
            work.wait()
            if self.pulse:
                self.pulse.complete()

    def broadcast(self, tensor: torch.Tensor, source: int) -> dist.Work | None:
        """Starts to send one rank's tensor to all others, into theirs; wait for it with `finish`."""
        if self.pulse:
            self.pulse.enqueue()
        work: dist.Work | None = dist.broadcast(tensor, source, async_op=True)
        return work

    def gather_parts(self, tensor: torch.Tensor, parts: list[torch.Tensor] | None, to: int | None) -> dist.Work | None:
        """Starts to bring every rank's tensor into `parts`, on all ranks or on one (the others have None); see `finish`."""
        if self.pulse:
            self.pulse.enqueue()
        if to is not None:
            work: dist.Work | None = dist.gather(tensor, parts, to, async_op=True)
        else:
            work = dist.all_gather(parts, tensor, async_op=True)
        return work

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """A host tensor of every rank, stacked: (world_size, *shape). Blocks."""
        if not self.has_group:
            return tensor.unsqueeze(0)
        parts = [torch.empty_like(tensor) for _ in range(self.world_size)]
        if self.pulse:
            self.pulse.enqueue()
        self.finish(dist.all_gather(parts, tensor, async_op=True))
        return torch.stack(parts)

    def gather_floats(self, values: Sequence[float]) -> torch.Tensor:
        """Some numbers of every rank: (world_size, len(values)), float64. Blocks."""
        return self.gather(torch.tensor(values, dtype=torch.float64))

    def lowest_capability(self) -> tuple[int, int] | None:
        """The lowest compute capability among the ranks; None where one has no GPU. Blocks.

        Asked of all ranks: with GPUs of several kinds each would choose for itself, and their collectives would no longer match.
        """
        mine = torch.cuda.get_device_capability(self.device) if self.device.type == "cuda" else (-1, 0)
        lowest = min(tuple(row) for row in self.gather_floats(mine).tolist())
        return None if lowest[0] < 0 else (int(lowest[0]), int(lowest[1]))

    def close(self) -> None:
        """Waits until all ranks have ended cleanly; the process leaves right after.

        The group is not destroyed: its threads would be joined with the interpreter's lock held (by the last owner, DDP's reducer),
        and gloo's may be waiting for that lock to let go of a tensor.
        """
        if self.has_group:
            dist.barrier()


def join_ranks(parallel: Parallel) -> Ranks:
    """Reads the launcher's variables, takes the device and joins the process group."""
    rank, world_size, local_rank = read_place(os.environ)
    num_gpus = torch.cuda.device_count()
    device = torch.device("cuda", local_rank % num_gpus) if num_gpus else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # torchrun's name, and the deepspeed launcher's.
    local_world_size = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE", "1")
    backend, reason = choose_backend(parallel.backend, world_size, int(local_world_size), num_gpus)
    if backend == "none":
        return Ranks(rank, world_size, device, backend, reason)
    # One rank without a launcher that nevertheless asked for a backend gets a store of its own.
    store = None if "MASTER_ADDR" in os.environ else torch._C._distributed_c10d.HashStore()
    dist.init_process_group(
        # gloo beside NCCL: numbers on the host travel without touching the device.
        "cpu:gloo,cuda:nccl" if backend == "nccl" else "gloo",
        timeout=datetime.timedelta(seconds=parallel.timeout_s),
        store=store,
        rank=-1 if store is None else 0,
        world_size=-1 if store is None else 1,
        device_id=device if backend == "nccl" else None,
    )
    return Ranks(rank, world_size, device, backend, reason)


def read_place(environ: Mapping[str, str]) -> tuple[int, int, int]:
    """(rank, world size, local rank) from the launcher's variables; one rank without them."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    texts = [environ.get(name, default) for name, default in zip(names, ("0", "1", "0"), strict=True)]
    where = " ".join(f"{name}={text}" for name, text in zip(names, texts, strict=True))
    do = "start the ranks with torchrun, or unset these variables for a single one"
    if not all(text.isdecimal() for text in texts):
        raise UsageError("the launcher's variables are not numbers", where, do)
    rank, world_size, local_rank = map(int, texts)
    if rank >= world_size:
        raise UsageError(f"there is no rank {rank} among {world_size}", where, do)
    if world_size > 1 and "MASTER_ADDR" not in environ:
        raise UsageError(f"{world_size} ranks without MASTER_ADDR cannot find each other", where, do)
    return rank, world_size, local_rank


def choose_backend(requested: str, world_size: int, local_world_size: int, num_gpus: int) -> tuple[str, str]:
    """(backend, reason); refuses what the devices cannot serve."""
    if requested == "nccl" and local_world_size > num_gpus:
        raise ConfigError(
            f"parallel.backend=nccl needs one GPU per rank: {local_world_size} ranks, {num_gpus} GPUs here",
            "parallel.backend",
            "set parallel.backend=gloo, or start fewer ranks with --nproc",
        )
    if requested != "auto":
        return requested, "as requested"
    if world_size == 1:
        return "none", "one rank needs no collectives"
    if 0 < local_world_size <= num_gpus:
        return "nccl", f"{local_world_size} ranks on {num_gpus} GPUs"
    return "gloo", "no GPU" if num_gpus == 0 else f"{local_world_size} ranks share {num_gpus} GPUs, which NCCL refuses"
