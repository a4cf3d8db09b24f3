"""The update of a table's rows that a step has touched, and of no others: adam, adamw or sgd as configured, with the state of each row.

A row's count of updates is its own: a row that is seen for the first time at step 100,000 is corrected for its moments' beginning as every
other was at its first, and moves by the learning rate, not by three times that. While a row is not touched, its moments and its weights
stay as they are, decay included. A row whose gradient is zero has not been touched: it is what padding leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from paceline.config.sections import Optimizer
from paceline.engine.optimizer import split_parameters

_AT_ONCE = {"cpu": 1 << 17}
_AT_ONCE_ELSEWHERE = 1 << 25
"""Numbers in touched rows that are updated together: what is computed on the way takes so much memory a few times. On a CPU it stays in a
cache (17 MB of rows of width 512, one thread: 91 ms, and 252 ms in one piece; 2026-11-16)."""


class RowOptimizer:
    """The configured rule over the weights of tables."""

    def __init__(self, tables: Mapping[str, torch.nn.Parameter], config: Optimizer) -> None:
        self._tables = tables
        self._config = config
        decayed, _ = split_parameters(tables, config.no_decay)
        self._decay = {name: config.weight_decay if name in decayed else 0.0 for name in tables}
        self._state = {name: self._begin(weight) for name, weight in tables.items()}

    def _begin(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        """What is kept of each row before its first update."""
        if self._config.name == "sgd":
            return {"momentum_buffer": torch.zeros_like(weight)} if self._config.momentum else {}
        return {
            "exp_avg": torch.zeros_like(weight, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(weight, requires_grad=False),
            "step": torch.zeros(len(weight), dtype=torch.int32, device=weight.device),
        }

    def state(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        """(entry, name of the parameter, values): themselves, not copies."""
        for name, entries in self._state.items():
            for entry, values in entries.items():
                yield entry, name, values

    def update(
        self, name: str, ids: torch.Tensor, gradient: torch.Tensor, lr: float, factor: torch.Tensor, skip: torch.Tensor
    ) -> None:
        """Rows `ids`, each there once, by factor · gradient; none where `skip` (a scalar on the device) is 1."""
        if not len(ids):
            return
        count = max(1, _AT_ONCE.get(ids.device.type, _AT_ONCE_ELSEWHERE) // gradient.shape[1])
        with torch.no_grad():
            for some, rows in zip(torch.split(ids, count), torch.split(gradient, count), strict=True):
                self._update_some(name, some, rows, lr, factor, skip)

    def _update_some(
        self, name: str, ids: torch.Tensor, gradient: torch.Tensor, lr: float, factor: torch.Tensor, skip: torch.Tensor
    ) -> None:
        is_updated = ((gradient != 0).any(1) & (skip == 0)).unsqueeze(1)
        weight, state = self._tables[name].detach(), self._state[name]
        before = {"": weight[ids]} | {entry: values[ids] for entry, values in state.items()}
        rule = self._sgd if self._config.name == "sgd" else self._adam
        after = rule(before, gradient * factor, lr, self._decay[name])
        for entry, values in ({"": weight} | state).items():
            keep = is_updated if values.dim() > 1 else is_updated.squeeze(1)
            values.index_copy_(0, ids, torch.where(keep, after[entry], before[entry]))

    def _sgd(
        self, before: Mapping[str, torch.Tensor], gradient: torch.Tensor, lr: float, decay: float
    ) -> dict[str, torch.Tensor]:
        weight = before[""]
        change = gradient + decay * weight if decay else gradient
        after = {}
        if self._config.momentum:
            change = after["momentum_buffer"] = before["momentum_buffer"] * self._config.momentum + change
        return after | {"": weight - lr * change}

    def _adam(
        self, before: Mapping[str, torch.Tensor], gradient: torch.Tensor, lr: float, decay: float
    ) -> dict[str, torch.Tensor]:
        weight, (beta1, beta2) = before[""], self._config.betas
        if decay and self._config.name == "adamw":
            weight = weight * (1 - lr * decay)
        elif decay:
            gradient = gradient + decay * weight
        average = torch.lerp(before["exp_avg"], gradient, 1 - beta1)
        square = (before["exp_avg_sq"] * beta2).addcmul_(gradient, gradient, value=1 - beta2)
        count = before["step"] + 1
        # In double, as torch has them on the host: 1 - 0.999 keeps four digits in fp32.
        times = count.double().unsqueeze(1)
        rate = (lr / (1 - beta1**times)).float()
        correction = (1 - beta2**times).sqrt().float()
        change = average / square.sqrt().div_(correction).add_(self._config.eps)
        weight = weight - change.mul_(rate)
        return {"": weight, "exp_avg": average, "exp_avg_sq": square, "step": count}
