"""Paceline trains PyTorch models on one to many GPUs and tells its operator early, and by name, what is wrong.

from paceline import start_run        # a training loop of your own writes the same run directory; see docs/sdk.md
"""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Imported when it is asked for: everything of ours imports this file.
    if name == "start_run":
        from paceline.telemetry.sdk import start_run

        return start_run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
