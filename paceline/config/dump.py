"""Writes a configuration as YAML, every key on its own line; reading it again gives an equal configuration.

train:
  max_steps: 500
  optimizer:
    betas: [0.9, 0.999]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from paceline.config.describe import section_type
from paceline.config.sections import RunConfig
from paceline.config.source import show


def dump_config(config: RunConfig) -> str:
    """The complete configuration, defaults included."""
    return "\n".join(_lines(config, config.model_dump(mode="json"), "")) + "\n"


def _lines(section: BaseModel, values: dict[str, Any], indent: str) -> Iterator[str]:
    for word, field in type(section).model_fields.items():
        if section_type(field):
            yield f"{indent}{word}:"
            yield from _lines(getattr(section, word), values[word], f"{indent}  ")
        else:
            yield f"{indent}{word}: {show(values[word])}"
