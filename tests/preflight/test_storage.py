"""Room for checkpoints against the disk that is really here; full and read-only ones are in test_broken_machines.py."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from paceline.preflight.storage import check_room, check_storage, checkpoint_bytes, existing_place, measure_speed
from tests.launch.saved import save_checkpoint
from tests.preflight.conftest import Build, by_name

SAVED = 12
"""bytes per parameter: weight and two moments in fp32"""


def test_a_directory_that_is_not_there_yet(build: Build, tmp_path: Path) -> None:
    subject = build(root=tmp_path / "a" / "b" / "run")
    found = by_name(check_storage(subject))
    assert {check.status for check in found.values()} == {"ok"}
    assert found["room"].values["place"] == str(tmp_path)
    assert "not known" in found["room"].found
    assert found["write speed"].values["mib_per_s"] > 0 < found["read speed"].values["mib_per_s"]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("share", "overrides", "status", "says"),
    [
        (0.01, (), "ok", "6 ×"),
        (0.4, (), "warn", "3 kept, best, final, one being written"),
        (0.4, ("checkpoint.keep=1",), "warn", "4 ×"),
        (1.5, (), "fail", "not even one fits"),
        (1.5, ("checkpoint.enabled=false",), "ok", "no checkpoints are written"),
        (0.4, ("train.optimizer.name=sgd",), "ok", "6 ×"),
        (2.5, ("train.optimizer.name=sgd", "train.optimizer.momentum=0.9"), "fail", "not even one fits"),
    ],
)
def test_room_for_checkpoints(
    build: Build, tmp_path: Path, share: float, overrides: tuple[str, ...], status: str, says: str
) -> None:
    """`share`: of the free room, that one checkpoint of AdamW would take."""
    free = shutil.disk_usage(tmp_path).free
    subject = build(*overrides, sizes={"num_parameters": int(share * free / SAVED)})
    found = check_room(subject)[0]
    assert found.status == status
    assert says in found.found
    assert bool(found.remedy) == (status != "ok")


def test_a_run_that_is_there_knows_the_size_and_uses_its_own_room(build: Build) -> None:
    subject = build()
    assert checkpoint_bytes(subject) is None
    saved = save_checkpoint(subject.root, 2)
    size = checkpoint_bytes(subject)
    assert size is not None
    assert size >= sum(path.stat().st_size for path in saved.glob("shard-*")) > 0
    found = check_room(subject)[0]
    assert "of them there already" in found.found
    assert found.values["needed_bytes"] < 6 * size


def test_the_place_to_measure(tmp_path: Path) -> None:
    assert existing_place(tmp_path / "x" / "y") == tmp_path
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    assert existing_place(tmp_path / "gone" / "run") == tmp_path / "gone"
    with pytest.raises(OSError, match="No such file"):
        measure_speed(tmp_path / "gone")
