"""The optimizer: parameter groups with and without decay, the fused kernel where it exists, the learning rate of each step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from paceline.config.arithmetic import lr_factor, scaled_lr
from paceline.config.sections import Optimizer, Train
from paceline.errors import ConfigError
from paceline.telemetry.events import EventLog

FUSED_DEVICES = ("cuda", "cpu")
_KINDS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}


def split_parameters(names: Iterable[str], no_decay: list[str]) -> tuple[list[str], list[str]]:
    """Those of the parameters that decay, and those that do not."""
    names = list(names)
    spared = [name for name in names if any(word in name for word in no_decay)]
    return [name for name in names if name not in set(spared)], spared


def find_unmatched(model: torch.nn.Module, no_decay: list[str]) -> list[str]:
    """Words of no_decay that no parameter's name contains: misspelt, most likely."""
    names = [name for name, _ in model.named_parameters()]
    return [word for word in no_decay if not any(word in name for name in names)]


def build_optimizer(
    parameters: Mapping[str, torch.Tensor], config: Optimizer, device: torch.device, events: EventLog
) -> torch.optim.Optimizer:
    """The configured optimizer over these parameters, which may be few: a share of the model's."""
    decayed, spared = split_parameters(parameters, config.no_decay)
    groups: list[dict[str, Any]] = []
    for names, decay in ((decayed, config.weight_decay), (spared, 0.0)):
        if names:
            groups.append({"params": [parameters[name] for name in names], "weight_decay": decay})
    if not groups:
        groups.append({"params": []})  # more ranks than parameters
    fused, reason = _choose_fused(config, device)
    events.choice("train.optimizer.fused", config.fused, fused, reason)
    options: dict[str, Any] = {"lr": config.lr, "fused": fused, "foreach": False if fused else None}
    if config.name == "sgd":
        options["momentum"] = config.momentum
    else:
        options |= {"betas": config.betas, "eps": config.eps}
    optimizer = _KINDS[config.name](groups, **options)
    if config.name == "sgd" and config.momentum:
        # The fused kernel leaves these uninitialised when the very first step is left out; from zero, momentum begins the same.
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                optimizer.state[parameter] |= initial_state(optimizer, parameter)
    return optimizer


def initial_state(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    """What the update rule keeps of a parameter, before its first step."""
    zeros = torch.zeros_like(parameter, requires_grad=False)
    if isinstance(optimizer, torch.optim.SGD):
        return {"momentum_buffer": zeros} if optimizer.defaults["momentum"] else {}
    count = torch.zeros((), device=parameter.device if optimizer.defaults["fused"] else "cpu")
    return {"step": count, "exp_avg": zeros, "exp_avg_sq": zeros.clone()}


def _choose_fused(config: Optimizer, device: torch.device) -> tuple[bool, str]:
    if device.type in FUSED_DEVICES:
        return (
            (True, f"{device.type} has a fused {config.name}")
            if config.fused == "auto"
            else (config.fused, "as requested")
        )
    if config.fused is True:
        raise ConfigError(
            f"train.optimizer.fused=true, but there is no fused {config.name} on {device.type}",
            "train.optimizer.fused",
            "set train.optimizer.fused=auto",
        )
    return False, f"{device.type} has no fused {config.name}"


class LearningRate:
    """Sets the learning rate of each optimizer step; counts optimizer steps, never micro-steps."""

    def __init__(self, train: Train, horizon: int) -> None:
        self.peak = scaled_lr(train.optimizer.lr, train.lr_scaling, train.global_batch)
        self._schedule = train.schedule
        self._horizon = horizon

    def at(self, step: int) -> float:
        return self.peak * lr_factor(self._schedule, step, self._horizon)

    def apply(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        lr = self.at(step)
        for group in optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(lr)  # where a recorded update looks for it
            else:
                group["lr"] = lr
