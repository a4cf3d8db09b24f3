"""What the engine asks of a strategy; the single process is the base, which has all of everything and shares nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch.nn.utils import get_total_norm

from paceline.config.sections import Parallel
from paceline.engine.powersgd import PowerSgd
from paceline.engine.ranks import Ranks
from paceline.engine.rows import find_tables
from paceline.telemetry.events import EventLog


class Strategy:
    """One process, no wrapper."""

    name = "single"
    sharing = "one rank holds everything"
    """who holds what"""
    rebuilds_buckets = False
    """the first iteration of a process is reduced otherwise than the others: see warm_up.py"""
    keeps_replicas = True
    """every rank has all weights between two steps: they can be compared"""
    needs_even_calls = False
    """weights travel whenever a block of the model is called: every rank has to call each of them as often as the others"""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        """the bare model, on its device: for checks and state"""
        self.module: torch.nn.Module = model
        """what the training step calls: the model, or its wrapper"""
        self.trainable: Mapping[str, torch.Tensor] = find_trainable(model)
        """what the optimizer of this rank updates, by the names of the parameters"""
        self.tables = find_tables(model)
        """what every rank holds whole, and whose gradients are nobody's business here: see tables.py"""
        self._parameters = list(self.trainable.values())

    @classmethod
    def build(cls, model: torch.nn.Module, ranks: Ranks, parallel: Parallel, events: EventLog) -> Strategy:
        """Around a model that may lie anywhere; what of the configuration it goes by is recorded."""
        return cls(model.to(ranks.device))

    @property
    def divisor(self) -> int:
        """By how much the strategy divides the sum of the ranks' gradients."""
        return 1

    @property
    def own_step(self) -> Callable[[], object] | None:
        """What updates the weights in place of the optimizer's own step, which is a part of it."""
        return None

    @property
    def powersgd(self) -> PowerSgd | None:
        """What compresses its gradients with a memory of its own."""
        return None

    @property
    def updated_copies(self) -> Sequence[torch.Tensor]:
        """What the optimizer updates in place of the parameters, where those are made from it."""
        return ()

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """Once, when there is an optimizer over what is `trainable`, and before it has any state."""

    def accumulating(self) -> contextlib.AbstractContextManager[object]:
        """Around every micro-step but the last: gradients stay on this rank."""
        return contextlib.nullcontext()

    def backward(self, loss: torch.Tensor) -> None:
        """Backward of a micro-step; gradients travel as the strategy has them travel."""
        loss.backward()  # type: ignore[no-untyped-call]

    def gradients(self) -> list[torch.Tensor]:
        """What the last backward left on this rank, ready for the optimizer."""
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]

    def total_norm(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """The norm of the whole gradient, the same on every rank."""
        return get_total_norm(gradients)

    def share_update(self) -> None:
        """After the optimizer's step: every rank gets what the others have updated."""

    def drop_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    @contextlib.contextmanager
    def whole(self) -> Iterator[torch.nn.Module]:
        """The whole model, to be used in any way, by each rank as often as it likes; every rank enters and leaves."""
        yield self.model

    def outline(self, target: torch.Tensor) -> torch.Tensor:
        """A weight or buffer of the model, or, where this rank does not have it as a tensor, its whole shape without values."""
        return target

    def fill(self, target: torch.Tensor, value: torch.Tensor) -> None:
        """Copies a whole tensor into a weight or buffer of the model."""
        target.copy_(value)

    def moments(self, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
        """The optimizer's state by `entry.parameter`: the same names, shapes and types in the same order on every rank."""
        return {
            f"{entry}.{name}": value
            for name in self.trainable
            for entry, value in self._state_of(name, optimizer).items()
        }

    def _state_of(self, name: str, optimizer: torch.optim.Optimizer) -> Mapping[str, torch.Tensor]:
        """What the optimizer keeps for a parameter; nothing before its first step."""
        state: Mapping[str, torch.Tensor] = optimizer.state.get(self.trainable[name], {})
        return state

    def cut_moment(self, name: str, moment: torch.Tensor) -> torch.Tensor | None:
        """What this rank's optimizer keeps of a moment of a parameter; None: nothing."""
        return moment

    def place_moment(self, optimizer: torch.optim.Optimizer, entry: str, name: str, moment: torch.Tensor) -> bool:
        """Copies a whole moment of a parameter to where it belongs; False: the optimizer is to be given what `cut_moment` says."""
        return False

    def writer(self, name: str) -> int | None:
        """The rank that alone can save what belongs to a parameter; None: any of them."""
        return None

    def assemble(
        self, tensors: Mapping[str, torch.Tensor], shards: Sequence[Sequence[str]]
    ) -> Iterator[torch.Tensor] | None:
        """The tensors of this rank's shard, one after another, each made whole by all ranks together; None: they lie here whole."""
        return None

    def watch_waits(self, every: int) -> bool:
        """From now on measure, every so many steps, how long this rank waits for the others; False: it cannot be known."""
        return False

    def read_wait(self) -> tuple[int, float] | None:
        """(iteration, ms that this rank's gradients, all of them ready, waited for the others') of the last one measured."""
        return None


def join_norms(norm: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """The norm of the whole gradient, from each rank's norm of what it alone has."""
    square = norm.to(ranks.device, torch.float64).square()
    ranks.finish(ranks.all_reduce(square))
    return square.sqrt().float()


def find_trainable(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The parameters that an optimizer updates, by name; tied ones once, and tables not at all."""
    tables = find_tables(model)
    return {name: p for name, p in model.named_parameters() if p.requires_grad and name not in tables}
