"""What makes a run this run: the identity of a configuration and of its data, and how two sets of values differ.

    identity_of(config, digest)   -> {"fingerprint": "9f2c…", "values": {"data.digest": "…", "run.seed": 0, …}}
    may_fork_change("train.optimizer.lr")   -> True

The class of each key (identity, numerics, operational) stands beside it in its section. Data counts by its content, and so do the
weights that a run begins with where it begins with another's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from paceline.config.describe import describe
from paceline.config.sections import IDENTITY, NUMERICS, RunConfig

DATA_DIGEST = "data.digest"
INIT_WEIGHTS = "init.weights"
_CAME_LATER = ("train.optimizer.ema", "train.schedule.horizon")
"""Not part of an identity where they are null: a run that began before there were any is still itself."""
_FORK_MAY_CHANGE = (
    "train.optimizer.",
    "train.schedule.",
    "train.lr_scaling.",
    "train.clip_norm",
    "loss.",
    INIT_WEIGHTS,
)


def identity_of(config: RunConfig, data_digest: str, weights_digest: str | None = None) -> dict[str, Any]:
    """The fingerprint and the values that it is made of."""
    dumped = config.model_dump(mode="json")
    values = {name: _at(dumped, name) for name in _keys(type(config), IDENTITY)} | {DATA_DIGEST: data_digest}
    for name in _CAME_LATER:
        if values[name] is None:
            del values[name]
    if weights_digest is not None:
        values[INIT_WEIGHTS] = weights_digest
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return {"fingerprint": hashlib.sha256(canonical.encode()).hexdigest(), "values": dict(sorted(values.items()))}


def may_fork_change(key: str) -> bool:
    """Whether a run that goes on from another's checkpoint may have another value of this identity key.

    It may change how training goes on; not what the saved tensors and the position in the data mean. Which weights the parent began
    with is past by then.
    """
    return key != "train.optimizer.name" and key.startswith(_FORK_MAY_CHANGE)


def numerics_of(schema: type[RunConfig]) -> list[str]:
    """The keys whose values change digits, not the training: another one is accepted and recorded."""
    return _keys(schema, NUMERICS)


def differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """The keys whose values differ, with both values; None for a key that one side does not have."""
    return [(key, a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)]


def _keys(schema: type[RunConfig], fingerprint: str) -> list[str]:
    return [key.name for key in describe(schema).values() if key.fingerprint == fingerprint]


def _at(tree: Any, name: str) -> Any:
    for part in name.split("."):
        tree = tree[part]
    return tree
