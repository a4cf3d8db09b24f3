"""How an attempt ended, in one line for the operator, with the checkpoint that it left.

describe_ending(layout, "stopped", "stop_command", 17)
-> "stopped at step 17 (stop_command); a checkpoint was left: checkpoints/step_00000017"
"""

from __future__ import annotations

from paceline.telemetry.checkpoints import MANIFEST, step_name
from paceline.telemetry.layout import RunLayout


def describe_ending(layout: RunLayout, state: str, reason: str, step: int | None) -> str:
    if step is None:
        return f"{state} ({reason})"
    line = f"{state} at step {step:,} ({reason})"
    checkpoint = layout.checkpoints / step_name(step)
    if not (checkpoint / MANIFEST).exists():
        return line
    return f"{line}; a checkpoint was left: {checkpoint.relative_to(layout.root)}"
