"""A recipe as the registry knows it: no torch before its workload is built.

RECIPE = Recipe("mine", MyConfig, build=build, identify_data=lambda config: "generated:1")
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.config.sections import RunConfig
from paceline.workload.protocol import Workload


@dataclass(frozen=True)
class Foreign:
    """How a recipe is started that has no workload: a script of somebody's own."""

    start: Callable[[Path, int], list[str]]
    """from a claimed run directory and its attempt: what is started in place of torchrun and the worker"""
    argv: Callable[[Any, Path, int], list[str]]
    """from the configuration, the run directory and the number of ranks: the script's own command line, for people"""


@dataclass(frozen=True)
class Recipe:
    """A recipe as the operator's side sees it; importing it must not import torch."""

    name: str
    schema: type[RunConfig]
    build: Callable[[Any], Workload]
    """from the resolved configuration; imports torch when called"""
    identify_data: Callable[[Any], str]
    """a digest of the data's content (or of what it is generated from); raises DataError if it is not there"""
    check: Callable[[Any], Sequence[Any]] = lambda config: ()
    """further `errors.Problem`s of a configuration that types alone cannot see"""
    find_idle: Callable[[Any, Collection[str]], Iterable[tuple[str, str]]] = lambda config, given: ()
    """(key, reason) of the recipe's own keys that somebody gave and that change nothing"""
    heeds: Callable[[Any], Collection[str]] = lambda config: ()
    """the engine's keys that the recipe itself goes by: they are never said to change nothing"""
    config_file: Path | None = None
    """the YAML that the recipe's name stands for, where it does not lie in configs/; None: the defaults of the schema"""
    foreign: Foreign | None = None
    """what is started instead, where there is no workload to build"""
