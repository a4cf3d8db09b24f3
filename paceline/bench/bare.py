"""A training script that has never heard of Paceline: what `bench startup` compares `paceline train` with. Imports torch alone.

torchrun --nproc-per-node 2 bare.py ITEMS WIDTH BLOCKS HEADS LENGTH BATCH     prints the time at which its first step was done
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


class Model(nn.Module):
    """The shape of the sasrec recipe's model: embeddings, causal pre-norm blocks, scores against the item embedding."""

    def __init__(self, items: int, width: int, blocks: int, heads: int, length: int) -> None:
        super().__init__()
        self.items = nn.Embedding(items + 1, width)
        self.positions = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, blocks, nn.LayerNorm(width), enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        hidden = self.blocks(self.items(items) + self.positions.weight, mask=self.mask, is_causal=True)
        return functional.linear(hidden, self.items.weight)


def main() -> None:
    items, width, blocks, heads, length, batch = map(int, sys.argv[1:7])
    has_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if has_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(items, width, blocks, heads, length).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    tokens = torch.randint(1, items + 1, (batch, length + 1), device=device)
    scores = model(tokens[:, :-1])
    functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten()).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    if has_gpu:
        torch.cuda.synchronize()
    if dist.get_rank() == 0:
        print(f"first-step {time.time()!r}", flush=True)
    # Before its group: the last to let go of it waits for the group's thread, DDP with Python's lock in its hands.
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
