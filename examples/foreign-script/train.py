"""A plain PyTorch training script, as many lie around: arguments, a loop, a line every few steps. It has never heard of Paceline."""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(16, args.width), nn.GELU(), nn.Linear(args.width, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    secret = torch.randn(16, generator=torch.Generator().manual_seed(1))

    began = time.perf_counter()
    for step in range(1, args.steps + 1):
        inputs = torch.randn(args.batch, 16)
        targets = torch.tanh(inputs @ secret).unsqueeze(1)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            now = time.perf_counter()
            print(f"iter {step} | loss {loss.item():.6f} | {(now - began) * 100:.3f} ms")
            began = now

    with torch.no_grad():
        inputs = torch.randn(4096, 16, generator=torch.Generator().manual_seed(2))
        error = (model(inputs).squeeze(1) - torch.tanh(inputs @ secret)).abs().mean()
    print(f"held-out error {error.item():.6f}")


if __name__ == "__main__":
    main()
