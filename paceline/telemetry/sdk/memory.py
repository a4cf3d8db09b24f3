"""How much memory this process uses: its peak on the GPU where the loop's own torch uses one, else what is resident and its own.

torch is never imported here; a loop that trains on a GPU has imported it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_GIB = 2**30


def gpu_in_use() -> int | None:
    """The index of the calling thread's GPU; None where torch uses none."""
    torch = sys.modules.get("torch")
    try:
        return int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_initialized() else None
    except Exception:  # a torch that is half imported, or of another kind
        return None


def memory_gib(gpu: int | None) -> float | None:
    """The most that was allocated on that GPU so far, or the resident memory of the process without what it has mapped of files, which is
    the system's to take back; None where neither is known."""
    try:
        if gpu is not None:
            return float(sys.modules["torch"].cuda.max_memory_allocated(gpu)) / _GIB
        _, resident_pages, mapped_pages, *_ = map(int, Path("/proc/self/statm").read_text().split())
        return (resident_pages - mapped_pages) * os.sysconf("SC_PAGE_SIZE") / _GIB
    except Exception:
        return None
