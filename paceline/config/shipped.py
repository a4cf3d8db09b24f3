"""YAML files that come with the package and are found by their names: playbooks, plans of sweeps.

find_shipped("plans", "plan", "csa-sweep")   -> (…/configs/plans/csa-sweep.yaml, "configs/plans/csa-sweep.yaml")
"""

from __future__ import annotations

from pathlib import Path

import paceline
from paceline.config.nearest import nearest
from paceline.errors import UsageError

_CONFIGS = Path(paceline.__file__).parent / "configs"


def list_shipped(folder: str) -> list[str]:
    """Those of a folder, by the name to type."""
    return sorted(path.stem for path in (_CONFIGS / folder).glob("*.yaml"))


def find_shipped(folder: str, noun: str, target: str) -> tuple[Path, str]:
    """The file of that name, ours before the user's own, and how messages name it; `noun` is what it is called there."""
    names = list_shipped(folder)
    if target in names:
        return _CONFIGS / folder / f"{target}.yaml", f"configs/{folder}/{target}.yaml"
    path = Path(target)
    if path.is_file():
        return path, target
    close = nearest(target, [*names, *(str(other) for other in path.parent.glob("*.y*ml"))])
    do = f"use {close}, or another of {', '.join(names)}" if close else f"name one of {', '.join(names)}"
    raise UsageError(f"there is no {noun} {target!r}", target, f"{do}, or a YAML file")
