"""Which attention kernel a run uses, and why."""

from __future__ import annotations

from paceline.telemetry.events import EventLog


def choose_attention(requested: str, device_type: str, events: EventLog) -> str:
    """eager, sdpa or flex, recorded as requested and effective with the reason."""
    effective, reason = requested, "as requested"
    if requested == "auto":
        effective, reason = "sdpa", "SDPA picks the device's fastest kernel"
    elif requested == "flex" and device_type == "cpu":
        effective, reason = "sdpa", "flex attention has no backward on a CPU"
    events.choice("attention.impl", requested, effective, reason)
    return effective
