"""The packages that read and write audio: those of `paceline[speech]`, imported when they are needed. No torch."""

from __future__ import annotations

from typing import Any

from paceline.errors import UsageError


def import_audio() -> tuple[Any, Any]:
    """soundfile and soxr; UsageError where they are not installed."""
    try:
        import numpy  # noqa: F401  (both need it, and say less clearly that it is missing)
        import soundfile
        import soxr
    except (ImportError, OSError) as error:  # OSError: soundfile without the C library that it wraps
        what = f"audio needs the packages soundfile and soxr, and they cannot be imported ({error})"
        raise UsageError(what, "this Python's packages", "pip install 'paceline[speech]'") from None
    return soundfile, soxr
