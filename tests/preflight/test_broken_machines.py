"""Machines that are really broken, in namespaces of their own: a full tmpfs, a low ulimit, no loopback, a name that does not resolve."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.preflight.conftest import Inside, statuses

TRAIN = "paceline train sasrec data.users=40 data.items=30 train.max_steps=2 train.schedule.warmup_steps=0 --nproc 2"


def test_everything_at_once_each_with_its_reason_and_remedy(inside: Inside, tmp_path: Path) -> None:
    done = inside(
        "mount -t tmpfs -o size=64k none /dev/shm; head -c 64k /dev/zero > /dev/shm/full;"
        "hostname nosuch.invalid; export GLOO_SOCKET_IFNAME=eht0; ulimit -n 20;"
        f"exec taskset -c 0 paceline preflight sasrec data.placement=host data.num_workers=3 --nproc 2 --out {tmp_path}/run --json",
        "-m",
        "-n",
        "-u",
    )
    assert done.returncode == 3, done.stderr
    found = statuses(done)
    expected = {
        "shared memory": ("fail", "0.0 MiB of 0.1 MiB free"),
        "loopback": ("fail", "no connection to 127.0.0.1"),
        "hostname": ("warn", "nosuch.invalid does not resolve"),
        "interface": ("fail", "there is no interface eht0 (there are: lo)"),
        "open files": ("fail", "20 per process"),
        "cores": ("warn", "1 for 2 ranks and 6 loader processes"),
        "collective": ("warn", "not tried"),
    }
    assert {name: found[name]["status"] for name in expected} == {
        name: status for name, (status, _) in expected.items()
    }
    for name, (_, text) in expected.items():
        assert text in found[name]["found"]
        assert found[name]["remedy"]
    assert found["cores"]["remedy"].startswith("--nproc 1")
    assert "ip link set lo up" in found["loopback"]["remedy"]
    assert {name for name, check in found.items() if check["status"] != "ok"} - {"pulses"} == set(expected)
    assert not (tmp_path / "run").exists()


def test_file_systems(inside: Inside, tmp_path: Path) -> None:
    for name in ("full", "readonly", "small"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").write_text("mine")
    done = inside(
        f"""cd {tmp_path}
        mount -t tmpfs -o size=256k none full; head -c 256k /dev/zero > full/full
        mount -t tmpfs -o size=8m,ro none readonly
        mount -t tmpfs -o size=3m none small
        for out in full readonly small file; do paceline preflight --quick --out $out/run --json > $out.json || true; done
        ls -A small""",
        "-m",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "", "something was left"
    found = {}
    for name in ("full", "readonly", "small", "file"):
        checks = json.loads((tmp_path / f"{name}.json").read_text())["checks"]
        found[name] = {check["name"]: check for check in checks}
    assert "the disk is full" in found["full"]["run directory"]["found"]
    assert "Read-only file system" in found["readonly"]["run directory"]["found"]
    assert "a file stands where a directory is needed" in found["file"]["run directory"]["found"]
    for name in ("full", "readonly", "file"):
        assert found[name]["run directory"]["status"] == "fail"
        assert "--out DIR" in found[name]["run directory"]["remedy"]
    assert found["small"]["run directory"]["status"] == "ok"
    assert found["small"]["room"]["status"] == "warn"
    assert found["small"]["write speed"]["values"]["mib_per_s"] > 0


@pytest.mark.parametrize(
    ("breaks", "namespaces", "says"),
    [
        ("ulimit -n 20", (), "open files: 20 per process"),
        ("mount -t tmpfs -o size=64k none /dev/shm; head -c 64k /dev/zero > /dev/shm/full", ("-m",), "shared memory:"),
    ],
    ids=["ulimit", "shm"],
)
def test_a_start_is_refused_before_it_trains(
    inside: Inside, tmp_path: Path, breaks: str, namespaces: tuple[str, ...], says: str
) -> None:
    done = inside(f"{breaks}; exec {TRAIN} --out {tmp_path}/run", *namespaces)
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"PreflightError: {says}" in done.stderr
    assert "  do:    " in done.stderr
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (run["state"], run["attempts"][0]["exit_code"]) == ("failed", 3)
    assert not (tmp_path / "run" / "metrics.csv").exists()


@pytest.mark.slow
def test_a_name_that_does_not_resolve_is_no_reason_to_refuse(inside: Inside, tmp_path: Path) -> None:
    done = inside(f"hostname nosuch.invalid; exec {TRAIN} --out {tmp_path}/run", "-u")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("hostname: nosuch.invalid does not resolve") == 1
