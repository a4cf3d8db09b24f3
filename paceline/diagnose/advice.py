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

from paceline.diagnose.finding import Finding
from paceline.telemetry.reader import Run
from paceline.telemetry.run_file import SDK_RECIPE

_STACKS = re.compile(r"(?:^|[:;,] ?)paceline diagnose RUN --stacks[^;]*")
_GO_ON = re.compile(r"kill -CONT \d+ lets it go on(?:; )?")
_LOG = re.compile(r"read (?:the end of |the last lines of )?logs/(rank_\d+\.log)?(?:; )?")
_KEY = re.compile(r"\b(?:train|data|parallel|precision|telemetry)\.\w")
_NOT_OURS = (SDK_RECIPE, "command")
_WITHOUT_KEYS = {
    "data_bound": "give its loader more processes, have it prefetch further ahead, or do less work per sample",
    "communication_bound": "a larger batch or more accumulation (fewer exchanges), gradients in a smaller type, other buckets; paceline bench collective measures the link",
    "host_bound": "fewer launches (torch.compile, CUDA graphs), or a larger batch per rank",
    "not_finite": "lower the learning rate, lengthen its warm-up, clip gradients at 1.0, or train in float32",
    "loss_spike": "clip gradients at 1.0, or a lower learning rate with a longer warm-up; look at the samples of that step",
    "gradient_exploding": "clip gradients at 1.0 or lower, and lower the learning rate",
    "loss_flat": "look at the learning rate (too small, or so large that it only bounces) and its schedule; check that labels belong to their samples; try to overfit one batch",
    "memory_growth": "look for what is kept from step to step: losses with their graph (use .item()), lists, caches; a loader without processes of its own tells whether it is the loader",
}
"""for a loop that is not ours, where the advice names keys of our configuration"""


def fit_advice(finding: Finding, run: Run, *, is_living: bool) -> Finding:
    """The same finding. `is_living`: there are ranks that can be looked at and signalled."""
    do, root = finding.do, run.layout.root
    if run.run.recipe in _NOT_OURS and _KEY.search(do):
        do = _WITHOUT_KEYS.get(finding.kind, do)
    do = fit_text(do, root, is_living=is_living)
    return replace(finding, do=do or "paceline watch, beside it when it runs again, takes the stacks of all ranks")


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
