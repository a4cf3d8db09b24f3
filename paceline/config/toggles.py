"""Environment variables that look like settings of ours: there are none, so each one is an error that names the key to use instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from paceline.config.nearest import nearest, nearest_key
from paceline.errors import Problem

PREFIX = "PACELINE_"
ALLOWED = frozenset({"PACELINE_TEST_DATA"})
"""Read by the tests alone."""


def check_toggles(environ: Mapping[str, str], keys: Iterable[str]) -> list[Problem]:
    """A problem for each variable that somebody may believe to have an effect."""
    by_words = {key.replace(".", "_"): key for key in keys}
    problems = []
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in ALLOWED:
            continue
        words = name.removeprefix(PREFIX).lower()
        close = nearest(words, by_words)
        key = by_words[close] if close else nearest_key(words, by_words.values())
        instead = f"give {key}={environ[name]} as an argument, and " if key else ""
        problems.append(
            Problem(
                f"{name} has no effect: no setting hides in the environment", "environment", f"{instead}unset {name}"
            )
        )
    return problems
