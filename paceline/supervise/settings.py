"""How a run is supervised: the section `supervise` of its configuration as plain data, without the configuration's machinery.

The supervisor starts beside the ranks, whose imports it must not slow down: it gets its settings as one word of JSON.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from paceline.diagnose.limits import PHASE_LIMITS, Limits
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.run_file import SDK_RECIPE, RunFile


@dataclass(frozen=True)
class Settings:
    """The keys of the section that the supervisor reads, with their defaults."""

    policy: str = "note"
    stall_floor_s: float = 5.0
    stall_factor: float = 5.0
    start_limit_s: float = PHASE_LIMITS["start"]
    compile_limit_s: float = PHASE_LIMITS["compile"]
    evaluate_limit_s: float = PHASE_LIMITS["evaluate"]
    checkpoint_limit_s: float = PHASE_LIMITS["checkpoint"]

    @property
    def limits(self) -> Limits:
        own = {
            "start": self.start_limit_s,
            "compile": self.compile_limit_s,
            "evaluate": self.evaluate_limit_s,
            "checkpoint": self.checkpoint_limit_s,
            "snapshot": self.checkpoint_limit_s,
            # Where nobody says what is going on it may be an evaluation.
            "step": min(PHASE_LIMITS["step"], self.evaluate_limit_s),
        }
        return Limits(self.stall_floor_s, self.stall_factor, {**PHASE_LIMITS, **own})

    def to_record(self) -> dict[str, Any]:
        return asdict(self)


def settings_from(values: Mapping[str, Any]) -> Settings:
    """From a record or section; what is not among the keys is left to others."""
    known = {field.name for field in fields(Settings)}
    return Settings(**{name: value for name, value in values.items() if name in known})


def load_settings(layout: RunLayout, run: RunFile) -> Settings:
    """As the run's own config.yaml says; the defaults where that is somebody else's (the SDK), or an older version's."""
    return settings_from(_section(layout)) if run.recipe != SDK_RECIPE else Settings()


def load_enabled(layout: RunLayout) -> bool:
    """Whether the configuration has the launcher supervise the run."""
    return _section(layout).get("enabled", True) is True


def _section(layout: RunLayout) -> dict[str, Any]:
    import yaml

    with contextlib.suppress(OSError, UnicodeDecodeError, yaml.YAMLError, TypeError, LookupError):
        section = yaml.safe_load(layout.config.read_text(encoding="utf-8"))["supervise"]
        return section if isinstance(section, dict) else {}
    return {}
