"""A training script that has never heard of Paceline: what the same faults do under a plain torchrun. Imports torch alone.

    torchrun --nproc-per-node 2 plain.py STEPS DIR [WORKERS]

It trains, saves every rank's part every 20 steps and prints the loss every 10, as such scripts do.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

BATCH = 16


class Samples(Dataset[torch.Tensor]):
    """Endless random tokens, by their number."""

    def __init__(self, num: int) -> None:
        self._num = num

    def __len__(self) -> int:
        return self._num

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.randint(1, 500, (17,), generator=torch.Generator().manual_seed(number))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(500, 64)
        layer = nn.TransformerEncoderLayer(64, 2, 256, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        return functional.linear(self.blocks(self.items(items)), self.items.weight)


def save(model: nn.Module, root: Path, rank: int) -> None:
    part = root / f"rank_{rank}.part"
    with open(part, "wb") as file:
        torch.save(model.state_dict(), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, root / f"rank_{rank}.pt")  # the old one stays until the new one is whole
    dist.barrier()


def main() -> None:
    steps, root, workers = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    loader = DataLoader(Samples(steps * BATCH), BATCH, num_workers=workers)
    for step, tokens in enumerate(loader, 1):
        scores = model(tokens[:, :-1])
        loss = functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step % 20 == 0:
            save(model, root, rank)
    dist.barrier()  # nobody leaves while another one still needs him
    # The group is not destroyed: that waits for gloo's thread with the interpreter's lock, for which the thread may wait, too, to let go of its
    # last work. One end in ten was such a hang.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
