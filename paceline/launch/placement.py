"""Where the ranks of a run go on this machine: how many there are, and which GPUs they see.

place_ranks(config.launch)   -> Placement(world_size=2, visible=["0", "4"])      or ConfigError naming what there is
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from paceline.config.sections import Launch
from paceline.launch.hardware import list_gpus, select_gpus


@dataclass(frozen=True)
class Placement:
    """The ranks of a run and the GPUs they share."""

    world_size: int
    visible: list[str]
    """entries for CUDA_VISIBLE_DEVICES"""

    @property
    def num_gpus(self) -> int:
        return len(self.visible)


def place_ranks(launch: Launch, where: str = "launch.gpus") -> Placement:
    """The placement on this machine; `where` is the origin of launch.gpus."""
    gpus = [] if launch.gpus == [] else list_gpus()
    return _place(launch, select_gpus(launch.gpus, gpus, os.environ, where))


def wished_placement(launch: Launch) -> Placement:
    """The placement where every GPU asked for is there: what `explain` goes on with when `place_ranks` has refused."""
    return _place(launch, [str(index) for index in launch.gpus or []])


def _place(launch: Launch, visible: list[str]) -> Placement:
    return Placement(max(1, len(visible)) if launch.nproc == "auto" else launch.nproc, visible)
