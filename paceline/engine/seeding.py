"""Random numbers from where in the training we are, never from what was drawn before: (seed, step, micro-step, rank)."""

from __future__ import annotations

import os

import torch

_MASK = (1 << 64) - 1


def mix(*numbers: int) -> int:
    """63 well-mixed bits from some integers (the finaliser of splitmix64, applied number by number)."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1


def seed_model(seed: int) -> None:
    """Before the model is built: the same initial weights on every rank."""
    torch.manual_seed(mix(seed))


def seed_micro_step(seed: int, step: int, micro_step: int, rank: int, device: torch.device) -> None:
    """Before a forward: dropout differs between ranks and steps, and is the same after a resume."""
    # Not torch.manual_seed: for each kind of device that is not in use it keeps the seed and a printed stack, for ever; half a millisecond.
    number = mix(seed, step, micro_step, rank)
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(number)


def make_deterministic() -> None:
    """Deterministic kernels only; an operation that has none raises. Before the first matrix product on a GPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
