"""How many loader processes a rank has, and how long a batch of theirs may take; with the arithmetic, as it is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.config.sections import Data

_MOST = 8
"""more than this per rank have never been needed, and each costs memory"""
_CPU_SHARE = 4
"""without a GPU the cores train: one in so many may load instead"""


@dataclass(frozen=True)
class LoaderFacts:
    """What the choice depends on besides the configuration."""

    is_placed: bool
    """the samples live on the device"""
    is_heavy: bool
    """the recipe says that fetching them is work worth a process of its own"""
    has_gpu: bool
    cores: int
    local_ranks: int
    """on this machine"""


def choose_num_workers(requested: int | str, facts: LoaderFacts) -> tuple[int, str]:
    """(loader processes per rank, reason)."""
    if facts.is_placed:
        return 0, "the samples live on the device"
    if isinstance(requested, int):
        return requested, "as requested"
    if not facts.is_heavy:
        return 0, "fetching is light: another process would cost more than it saves"
    share = facts.cores // facts.local_ranks
    each = f"{facts.cores} cores // {facts.local_ranks} ranks = {share} each"
    if facts.has_gpu:
        return max(1, min(_MOST, share - 1)), f"{each}, one of them for training, at most {_MOST}"
    return max(1, min(_MOST, share // _CPU_SHARE)), f"{each}, which also train: a quarter of them, at least 1"


def choose_timeout(data: Data, collective_timeout_s: float) -> tuple[float | None, str]:
    """(seconds, reason); None: batches are waited for as long as they take."""
    requested = data.loader_timeout_s
    if requested == "auto":
        # The rank that waits for its loader must speak before the others give up waiting for that rank.
        return collective_timeout_s / 2, f"half of parallel.timeout_s={collective_timeout_s:g}"
    assert not isinstance(requested, str)
    return requested, "as requested"


def find_idle(requested: int | str, num_workers: int, reason: str, is_placed: bool) -> Iterator[tuple[str, str]]:
    """(key, reason) of what means nothing to a rank that has no loader processes, beyond what the configuration alone tells."""
    if num_workers == 0 and requested != 0:
        for name in ("prefetch", "loader_timeout_s"):
            yield f"data.{name}", f"there are no loader processes ({reason})"
    if is_placed:
        yield "data.pin_memory", "the samples live on the device"
