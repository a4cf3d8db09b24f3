"""Advice that can be followed: what a finding says to do, fitted to the run that it is said of.

fit_advice(finding, run, is_living=False)    # nobody can be let go on any more, and there are no stacks to take

A finding is written where it is found, and read when the run has ended, or is not one of ours: then there is no process, no log, no key of
the configuration that it could name.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

from paceline.diagnose.elsewhere import without_keys
from paceline.diagnose.finding import Finding
from paceline.telemetry.reader import Run
from paceline.telemetry.run_file import FOREIGN_RECIPE, SDK_RECIPE

_STACKS = re.compile(r"(?:^|[:;,] ?)paceline diagnose RUN --stacks[^;]*")
_GO_ON = re.compile(r"kill -CONT \d+ lets it go on(?:; )?")
_LOG = re.compile(r"read (?:the end of |the last lines of )?logs/(rank_\d+\.log)?(?:; )?")
_NOT_OURS = (SDK_RECIPE, FOREIGN_RECIPE)


def fit_advice(finding: Finding, run: Run, *, is_living: bool) -> Finding:
    """The same finding. `is_living`: there are ranks that can be looked at and signalled."""
    do = fit_text(fit_keys(finding, run.run.recipe).do, run.layout.root, is_living=is_living)
    return replace(finding, do=do or "paceline watch, beside it when it runs again, takes the stacks of all ranks")


def fit_keys(finding: Finding, recipe: str) -> Finding:
    """The same finding, without keys that a loop or a script of somebody's own does not have."""
    return replace(finding, do=without_keys(finding.do)) if recipe in _NOT_OURS else finding


def fit_text(do: str, root: Path, *, is_living: bool, has_stacks: bool = False) -> str:
    """With the run's own path, and without what cannot be done, or is done already; empty if nothing is left."""
    log = _LOG.search(do)
    if log is not None and not _has_log(root, log[1]):
        do = _LOG.sub("", do) or "read the last lines that it printed, where it was started"
    if not is_living or has_stacks:
        do = _STACKS.sub("", do)
    if not is_living:
        do = _GO_ON.sub("", do)
    return re.sub(r"\bRUN\b", lambda _: shlex.quote(str(root)), do).strip("; ")


def _has_log(root: Path, name: str | None) -> bool:
    logs = root / "logs"
    return (logs / name).exists() if name else any(logs.glob("*.log"))
