"""What a person gets wrong: a clear error, the right exit code, no traceback, nothing left behind."""

from __future__ import annotations

import pytest

from tests.integration.conftest import WITHOUT_GPU, tiny


def refuse(paceline, *arguments: str, code: int = 2, **options) -> str:
    """Runs a command that must fail with this code, without a traceback; what it printed to standard error."""
    found, out, err = paceline("train", *arguments, **options).finish()
    assert found == code, (out, err)
    assert "Traceback" not in err + out
    return err


def test_what_the_launcher_can_see_never_starts_anything(paceline, tmp_path):
    root = tmp_path / "run"
    err = refuse(
        paceline, "sasrec", "train.max_step=5", "train.global_batch=zero", "precision.mode=fp8", "--out", str(root)
    )
    assert "3 problems" in err
    for part in ("train.max_steps", "override 'train.global_batch=zero'", "auto, fp32, bf16"):
        assert part in err
    err = refuse(paceline, "sasrec", "data.path=nowhere.inter", "--out", str(root))
    assert "nowhere.inter" in err
    (tmp_path / "empty.inter").write_text("")
    assert "empty" in refuse(paceline, "sasrec", "data.path=empty.inter", "--out", str(root))
    assert "nccl" in refuse(paceline, "sasrec", "parallel.backend=nccl", "launch.gpus=[]", "--out", str(root))
    assert "PACELINE_DEBUG" in refuse(paceline, "sasrec", "--out", str(root), env=WITHOUT_GPU | {"PACELINE_DEBUG": "1"})
    assert not root.exists(), "nothing was written"
    assert "--nproc" in refuse(paceline, "sasrec", "--nprocs", "2")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("precious")
    assert "thesis.txt" in refuse(paceline, "sasrec", "--out", str(mine))
    assert [path.name for path in mine.iterdir() if not path.name.startswith(".")] == ["thesis.txt"]
    (tmp_path / "file").write_text("")
    assert "do:" in refuse(paceline, "sasrec", "--out", str(tmp_path / "file" / "run"))


@pytest.mark.timeout(90)
def test_a_malformed_line_is_named_by_its_number(paceline, tmp_path):
    lines = [f"{user} {item} {item}" for user in range(50) for item in range(1, 8)]
    lines[122] = "17 four 5 6 7"
    (tmp_path / "events.txt").write_text("\n".join(lines))
    err = refuse(paceline, "sasrec", "data.path=events.txt", "--nproc", "2", "--out", "run")
    assert "events.txt:123" in err
    assert "17 four 5 6 7" in err
    state = (tmp_path / "run" / "run.json").read_text()
    assert '"state": "failed"' in state


@pytest.mark.timeout(90)
@pytest.mark.slow
def test_a_disk_that_fills_up_ends_the_run_with_its_name(paceline, mount_disk, tmp_path):
    disk = tmp_path / "disk"
    mount_disk(disk, "size=300k")
    arguments = ["sasrec", *tiny("train.max_steps=1000000", "telemetry.ledger=true"), "--nproc", "2"]
    err = refuse(paceline, *arguments, "--out", str(disk / "run"), code=4)
    assert "the disk is full" in err
    assert str(disk) in err


def test_a_directory_that_cannot_be_written(paceline, mount_disk, tmp_path):
    mount_disk(tmp_path / "disk", "ro")
    err = refuse(paceline, "sasrec", "--out", str(tmp_path / "disk" / "run"))
    assert "cannot write" in err
    assert "--out DIR" in err
