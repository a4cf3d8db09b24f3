"""A net in training with a strategy, for functions that `on_ranks` calls on several ranks."""

from __future__ import annotations

import torch

from paceline.config.sections import Optimizer, Parallel
from paceline.engine.optimizer import build_optimizer
from paceline.engine.precision import Precision
from paceline.engine.ranks import Ranks
from paceline.engine.strategies.base import Strategy
from paceline.telemetry.events import QuietLog


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)
        self.norm = torch.nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(torch.tanh(self.linear(x)))


class Net(torch.nn.Module):
    """Blocks in a list, tied weights, buffers that training changes, a frozen parameter, fewer rows than ranks (1) and odd ones (11)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 6)
        self.blocks = torch.nn.ModuleList(Layer() for _ in range(2))
        self.output = torch.nn.Linear(6, 11, bias=False)
        self.output.weight = self.embedding.weight
        self.gain = torch.nn.Parameter(torch.ones(1))
        self.frozen = torch.nn.Parameter(torch.randn(3), requires_grad=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.output(x) * self.gain + self.frozen.sum()


def build_net(trained: str) -> Net:
    """A net of which parameters whose names contain `trained` are trained."""
    torch.manual_seed(0)
    net = Net()
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(trained in name and name != "frozen")
    return net


class Training:
    """A net in training with a strategy, on one of several ranks."""

    def __init__(self, kind: type[Strategy], ranks: Ranks, stage: int, trained: str = "", **optimizer: object) -> None:
        self.ranks = ranks
        self.strategy = kind.build(build_net(trained), ranks, Parallel(zero_stage=stage), QuietLog())
        section = Optimizer(**({"lr": 0.05, "weight_decay": 0.1} | optimizer))
        self.optimizer = build_optimizer(self.strategy.trainable, section, ranks.device, QuietLog())
        self.strategy.adopt(self.optimizer)
        self.norms: list[float] = []

    def train(self, steps: range, *, skip: float = 0.0, accumulate: int = 1) -> None:
        for step in steps:
            self.strategy.module.train()
            for micro_step in range(accumulate):
                # Each rank has a batch of its own.
                generator = torch.Generator().manual_seed(100 * step + 10 * micro_step + self.ranks.rank)
                ids = torch.randint(11, (5 + self.ranks.rank,), generator=generator)
                context = self.strategy.accumulating() if micro_step < accumulate - 1 else torch.enable_grad()
                with context:
                    loss = torch.nn.functional.cross_entropy(self.strategy.module(ids), (ids * 7 + 3) % 11)
                    # The mean over the ranks, whatever the strategy divides by.
                    self.strategy.backward(loss * self.strategy.divisor / self.ranks.world_size)
            gradients = self.strategy.gradients()
            norm = self.strategy.total_norm(gradients)
            self.norms.append(float(norm))
            torch._foreach_mul_(gradients, (0.5 / (norm + 1e-6)).clamp(max=1.0))
            Precision().apply(self.optimizer, torch.tensor(skip), self.strategy.own_step)
            self.strategy.share_update()
            self.strategy.drop_gradients()

    def weights(self) -> dict[str, torch.Tensor]:
        with self.strategy.whole() as model:
            return {name: value.detach().clone() for name, value in model.state_dict().items()}


def assert_same_on_all_ranks(ranks: Ranks, tensors: dict[str, torch.Tensor]) -> None:
    for name, value in tensors.items():
        table = ranks.gather(value.contiguous())
        assert all(torch.equal(table[0], row) for row in table), name
