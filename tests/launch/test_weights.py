from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from paceline.errors import CheckpointError, UsageError
from paceline.launch.origin import Origin
from paceline.launch.weights import Weights, find_weights
from paceline.telemetry.exports import WEIGHTS, Export, write_export
from tests.launch.saved import save_checkpoint
from tests.launch.test_claim import claim


def export(path: Path, content: bytes = b"weights", version: int = 1) -> Path:
    path.mkdir()
    (path / WEIGHTS).write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    write_export(path, Export("toy", 5, "id", "step_00000005", "0", "2", digest, 1, {"values": {}}, v=version))
    return path


def test_a_run_a_checkpoint_and_a_link_to_it_are_the_same_weights(tmp_path: Path) -> None:
    saved = save_checkpoint(tmp_path, 5)
    (tmp_path / "checkpoints" / "best").symlink_to(saved.name)
    found = [find_weights(str(place)) for place in (tmp_path, saved, tmp_path / "checkpoints" / "best")]
    assert {(weights.path, weights.digest) for weights in found} == {(saved.resolve(), found[0].digest)}
    assert found[0].record() == {"path": str(saved.resolve()), "digest": found[0].digest, "given": str(tmp_path)}
    found[0].check()


def test_the_digest_follows_the_weights_and_nothing_else(tmp_path: Path) -> None:
    first, later, other = (save_checkpoint(tmp_path / name, step) for name, step in (("a", 5), ("b", 9), ("c", 5)))
    changed = save_checkpoint(tmp_path / "d", 5, content=b"others")
    digests = [find_weights(str(path)).digest for path in (first, later, other, changed)]
    assert digests[0] == digests[1] == digests[2] != digests[3]


def test_an_export_counts_by_its_bytes(tmp_path: Path) -> None:
    place = export(tmp_path / "exported")
    weights = find_weights(str(place))
    assert weights.digest == hashlib.sha256(b"weights").hexdigest()
    weights.check()
    (place / WEIGHTS).write_bytes(b"weightz")
    with pytest.raises(CheckpointError, match="checksum"):
        weights.check()
    (place / WEIGHTS).unlink()
    with pytest.raises(UsageError, match="No such file"):
        weights.check()


def test_what_is_neither(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such directory"):
        find_weights(str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="no checkpoint here"):
        find_weights(str(tmp_path))
    with pytest.raises(UsageError, match="newer Paceline"):
        find_weights(str(export(tmp_path / "exported", version=9)))


def test_a_run_goes_on_when_what_it_began_with_is_gone(tmp_path: Path) -> None:
    gone, root = tmp_path / "gone", tmp_path / "run"
    record = Weights(gone / "step", "d1", gone).record()
    claim(root, origin=Origin(init_from=record)).release()
    assert find_weights(str(gone), root).digest == "d1"
    with pytest.raises(UsageError):
        find_weights(str(tmp_path / "another"), root)
    with pytest.raises(UsageError):
        find_weights(str(gone), tmp_path / "another")
