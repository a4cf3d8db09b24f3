"""The tensors of a run by canonical names, so that any number of ranks can read what any other wrote.

model.blocks.0.norm.weight      optimizer.exp_avg.blocks.0.norm.weight      precision.loss_scale      ema.blocks.0.norm.weight
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from paceline.engine.average import Average
from paceline.engine.precision import Precision
from paceline.engine.strategies.base import Strategy, find_trainable
from paceline.engine.tables import Tables
from paceline.errors import CheckpointError

MODEL, OPTIMIZER, PRECISION, EMA = "model.", "optimizer.", "precision.", "ema."
_MOST_NAMED = 5


def collect_tensors(
    strategy: Strategy,
    optimizer: torch.optim.Optimizer,
    precision: Precision,
    average: Average | None = None,
    tables: Tables | None = None,
) -> dict[str, torch.Tensor]:
    """Everything of a run that is a tensor: weights, their average, buffers, moments, the scale of the loss. Themselves, not copies.

    The same names, shapes and types on every rank; what a rank has in part, or not at all, its strategy knows how to bring together.
    """
    tensors = {MODEL + name: strategy.outline(tensor) for name, tensor in model_tensors(strategy.model).items()}
    tensors |= {OPTIMIZER + name: tensor for name, tensor in strategy.moments(optimizer).items()}
    if tables is not None:
        tensors |= {OPTIMIZER + name: tensor for name, tensor in tables.moments().items()}
    if average is not None:
        tensors |= {EMA + name: tensor for name, tensor in average.tensors().items()}
    return tensors | {PRECISION + name: tensor for name, tensor in precision.tensors().items()}


def find_writers(strategy: Strategy, names: Iterable[str]) -> dict[str, int]:
    """The rank that alone can save a tensor, for those where that matters."""
    writers = {}
    for name in names:
        if name.startswith((MODEL, OPTIMIZER)):
            writer = strategy.writer(name.split(".", 1 if name.startswith(MODEL) else 2)[-1])
            if writer is not None:
                writers[name] = writer
    return writers


def is_volatile(name: str, tensor: torch.Tensor) -> bool:
    """Whether it can change between two updates of the weights: a buffer does in a forward."""
    return not (isinstance(tensor, torch.nn.Parameter) or name.startswith((OPTIMIZER, EMA)))


def model_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by name; weights that share their storage once, under their first name."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        assert isinstance(value, torch.Tensor), f"{name} is not a tensor: it cannot be saved"
        found.setdefault(id(value), (name, value))
    return dict(found.values())


def load_weights(
    model: torch.nn.Module,
    weights: Mapping[str, torch.Tensor],
    where: str,
    do: str = "use the configuration they were trained with",
    strategy: Strategy | None = None,
) -> None:
    """Copies weights into a model that must have exactly these, in name, shape and type; with its strategy, where that has one."""
    targets = model_tensors(model)
    outlines = targets if strategy is None else {name: strategy.outline(target) for name, target in targets.items()}
    wrong = [*_differences(outlines, weights)]
    if wrong:
        more = f" and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
        raise CheckpointError(
            "the weights do not fit this model: " + "; ".join(wrong[:_MOST_NAMED]) + more,
            where,
            do,
        )
    with torch.no_grad():
        for name, target in targets.items():
            if strategy is not None:
                strategy.fill(target, weights[name])
            else:
                target.copy_(weights[name])


def load_moments(
    strategy: Strategy,
    optimizer: torch.optim.Optimizer,
    moments: Iterable[tuple[str, torch.Tensor]],
    where: str,
    tables: Tables | None = None,
) -> None:
    """Gives the optimizer its state back: `moments` by `entry.parameter`, of which each rank keeps what is its own, one after another.

    Rates and decays stay as configured.
    """
    shapes = {name: strategy.outline(p).shape for name, p in find_trainable(strategy.model).items()}
    numbers = {p: i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    names: dict[str, set[str]] = {}
    loaded: set[str] = set()
    entries: dict[int, dict[str, torch.Tensor]] = {}
    for full_name, value in moments:
        entry, _, name = full_name.partition(".")
        if tables is not None and name in tables.parameters:
            tables.load(full_name, value, where)
            loaded.add(full_name)
            continue
        if name not in shapes:
            raise _unfit(f"there is no trainable parameter {name!r}", where)
        if value.dim() and value.shape != shapes[name]:
            raise _unfit(f"{entry} of {name} is {tuple(value.shape)}, not {tuple(shapes[name])}", where)
        names.setdefault(name, set()).add(entry)
        if strategy.place_moment(optimizer, entry, name, value):
            continue
        mine = strategy.cut_moment(name, value)
        if mine is not None:
            entries.setdefault(numbers[strategy.trainable[name]], {})[entry] = mine
    missing = tables.moments().keys() - loaded if tables is not None else set()
    if missing:
        raise _unfit(f"{min(missing)} is missing", where)
    expected = _entry_names(optimizer)
    for found in names.values():
        if found != expected:
            raise _unfit(f"it has {', '.join(sorted(found))}, not {', '.join(sorted(expected))}", where)
    if not entries:
        return  # a rule without state so far; what the optimizer has set up for itself stays
    state: dict[str, Any] = {"state": entries, "param_groups": optimizer.state_dict()["param_groups"]}
    optimizer.load_state_dict(state)


def _entry_names(optimizer: torch.optim.Optimizer) -> set[str]:
    if isinstance(optimizer, torch.optim.SGD):
        return {"momentum_buffer"}
    return {"exp_avg", "exp_avg_sq", "step"}


def _unfit(reason: str, where: str) -> CheckpointError:
    what = f"the optimizer's state does not fit: {reason}"
    return CheckpointError(
        what, where, "use the configuration it was trained with, or --init-from for its weights alone"
    )


def _differences(targets: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor]) -> Iterator[str]:
    yield from (f"{name} is missing" for name in targets if name not in weights)
    yield from (f"the model has no {name}" for name in weights if name not in targets)
    for name, target in targets.items():
        found = weights.get(name)
        if found is not None and (found.shape, found.dtype) != (target.shape, target.dtype):
            yield f"{name} is {_kind(found)}, not {_kind(target)}"


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
