"""What a configuration of this recipe may say, and the recipe's entry in the registry. No torch, no numpy: `paceline explain` needs neither."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from paceline.config import sections
from paceline.config.sections import IDENTITY, Section, key
from paceline.errors import Problem
from paceline.workload import Recipe, Workload

GENERATOR_VERSION = 1
"""Raised whenever waves.py draws other data from the same numbers: old runs then know that the data is not theirs."""


class Data(sections.Data):
    num_train: int = key(2000, "Waves to train on.", IDENTITY, ge=1)
    num_evaluate: int = key(500, "Waves in each of validation and test.", IDENTITY, ge=1)
    length: int = key(32, "Points that a forecast looks at.", IDENTITY, ge=2)
    noise: float = key(0.1, "Standard deviation of the noise on every point.", IDENTITY, ge=0)
    jitter: float = key(0.0, "Further noise on what the model sees, drawn anew in each epoch.", IDENTITY, ge=0)
    seed: int = key(0, "Seed of the generated data, apart from run.seed.", IDENTITY, ge=0)


class Model(Section):
    width: int = key(64, "Width of the hidden layers.", IDENTITY, ge=1)
    dropout: float = key(0.0, "Share of activations zeroed.", IDENTITY, ge=0, lt=1)


class WavesConfig(sections.RunConfig):
    """A whole configuration: the sections that every recipe has, with our own `data` and `model`."""

    recipe: Literal["waves"] = key(..., "Which recipe trains.", IDENTITY)
    data: Data = key(Data(), "Generated waves.")
    model: Model = key(Model(), "The forecaster.")


def build(config: WavesConfig) -> Workload:
    from paceline_waves.workload import WavesWorkload  # imports torch

    return WavesWorkload(config)


def identify_data(config: WavesConfig) -> str:
    """A digest of all that the generated data follows from; of a file it would be a digest of its content."""
    data = config.data
    numbers = [GENERATOR_VERSION, data.num_train, data.num_evaluate, data.length, data.noise, data.seed]
    return f"generated:{hashlib.sha256(json.dumps(numbers).encode()).hexdigest()}"


def check(config: WavesConfig) -> Iterator[Problem]:
    """What types alone cannot see."""
    data = config.data
    if data.jitter > 2:
        what = f"data.jitter={data.jitter} drowns waves of height 1 to 2"
        yield Problem(what, "data.jitter", "give at most 2")


RECIPE = Recipe(
    name="waves",
    schema=WavesConfig,
    build=build,
    identify_data=identify_data,
    check=lambda config: list(check(config)),
    config_file=Path(__file__).with_name("waves.yaml"),
)
