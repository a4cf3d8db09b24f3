"""What env.json says about workers of ours: the machine, with its GPUs as the driver's own library lists them. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.launch.hardware import driver_version, list_gpus
from paceline.telemetry.machine import describe_machine


def describe_environment(environment: Mapping[str, str], directory: Path | None = None) -> dict[str, Any]:
    """The content of env.json for workers that get this environment, started from `directory` (the current one)."""
    gpus = [asdict(gpu) for gpu in list_gpus()]
    return describe_machine(environment, directory or Path.cwd(), gpus, driver_version())
