"""What a loop's own memory is."""

from __future__ import annotations

import mmap
from pathlib import Path

from paceline.telemetry.sdk.memory import memory_gib


def test_what_is_mapped_of_files_is_the_systems(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_bytes(bytes(64 << 20))
    before = memory_gib(None)
    with open(tmp_path / "tokens", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        assert sum(view[::4096]) == 0
        assert memory_gib(None) - before < 32 / 1024
        own = bytearray(b"1") * (64 << 20)
        assert memory_gib(None) - before > 48 / 1024
    del own
