"""What identifies the rows a run trains on, before anything is opened. No torch, no numpy: the command line imports this."""

from __future__ import annotations

import hashlib
import json

GENERATOR_VERSION = 1
"""Raised whenever generate.py or world.py draws other rows from the same numbers."""


def identify_generated(users: int, items: int, rows: int, seed: int) -> str:
    """The digest of everything that generated rows follow from."""
    scope = {"version": GENERATOR_VERSION, "users": users, "items": items, "rows": rows, "seed": seed}
    return f"generated:{hashlib.sha256(json.dumps(scope, sort_keys=True).encode()).hexdigest()}"
