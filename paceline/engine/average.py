"""An exponential moving average of the weights: what is evaluated, chosen as best and exported, while training goes on with the others.

    average ← d · average + (1 - d) · weights,  d = min(train.optimizer.ema, step / (step + 10))

after every step that was applied. The smaller d of the first steps lets the initial weights go; it follows from the step alone, so a resume
needs nothing but the average.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch

from paceline.errors import CheckpointError

_WARM_UP_STEPS = 10


def decay_at(decay: float, step: int) -> float:
    """How much of the average stays in this step."""
    return min(decay, step / (step + _WARM_UP_STEPS))


class Average:
    """The average of a model's trainable parameters, on their device, by their names; it begins with what they are."""

    def __init__(self, model: torch.nn.Module, decay: float) -> None:
        self._decay = decay
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._values = {name: p.detach().clone() for name, p in self._parameters.items()}

    def update(self, step: int, skip: torch.Tensor) -> None:
        """After an update of the weights; leaves everything as it is where `skip` (a scalar on the device) is 1."""
        share = (1.0 - decay_at(self._decay, step)) * (1.0 - skip)
        weights = [p.detach() for p in self._parameters.values()]
        values = list(self._values.values())
        difference = torch._foreach_sub(weights, values)
        torch._foreach_mul_(difference, share)
        torch._foreach_add_(values, difference)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the average as its weights inside; nothing is copied, and afterwards each has its own memory again."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def tensors(self) -> dict[str, torch.Tensor]:
        """What a checkpoint keeps, by the names of the parameters."""
        return dict(self._values)

    def load(self, tensors: Mapping[str, torch.Tensor], where: str) -> None:
        """Takes back what `tensors` gave."""
        wrong = sorted(tensors.keys() ^ self._values.keys()) or [
            name for name, value in self._values.items() if tensors[name].shape != value.shape
        ]
        if wrong:
            what = f"the average of the weights does not fit this model: {wrong[0]}"
            raise CheckpointError(what, where, "use the configuration it was trained with")
        for name, value in self._values.items():
            value.copy_(tensors[name])

    def _swap(self) -> None:
        for name, parameter in self._parameters.items():
            parameter.data, self._values[name] = self._values[name], parameter.data
