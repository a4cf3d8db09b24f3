"""Which attention kernel a run uses, and why."""

from __future__ import annotations

from paceline.telemetry.events import EventLog


def choose_attention(requested: str, events: EventLog) -> str:
    """eager, sdpa or flex, recorded as requested and effective with the reason."""
    effective = "sdpa" if requested == "auto" else requested
    reason = "SDPA picks the device's fastest kernel" if requested == "auto" else "as requested"
    events.choice("attention.impl", requested, effective, reason)
    return effective
