"""What a killed driver left costs as much as it lived, not until somebody came back."""

from __future__ import annotations

import os
from pathlib import Path

from paceline.sweep.takeover import last_sign


def test_the_last_sign_of_life_is_the_last_thing_that_was_written(tmp_path: Path) -> None:
    root, log = tmp_path / "0001-a-r1", tmp_path / "0001-a-r1.log"
    inside = root / "logs" / "rank_0.log"
    inside.parent.mkdir(parents=True)
    inside.touch()
    log.touch()
    for path, moment in ((inside, 130), (inside.parent, 110), (root, 105), (log, 120)):
        os.utime(path, (moment, moment))
    assert last_sign(root, 100.0) == 130
    inside.unlink()
    os.utime(inside.parent, (110, 110))
    assert last_sign(root, 100.0) == 120
    assert last_sign(tmp_path / "nothing", 100.0) == 100
