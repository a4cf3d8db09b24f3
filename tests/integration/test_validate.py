"""`paceline play validate` from the snapshot to the acceptance table, on two ranks, as small as it goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.files import read_json

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SIZES = ("baseline=14", "steps=12", "long=48", "rows=2", "profiled=8", "profile_from=4", "observed=24", "parity=64")


def play(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    small = [*(f"sizes.{each}" for each in SIZES), "data.users=200", "launch.nproc=2", "launch.gpus=[]"]
    command = [sys.executable, "-m", "paceline", "play", "validate", *small, *words, "--out", str(out)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=800, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )


def test_every_step_has_its_number_and_a_threshold_that_is_missed_its_pointer(tmp_path: Path) -> None:
    out, data = tmp_path / "out", tmp_path / "ratings.dat"
    lines = (f"{user} {item} {time}" for user in range(60) for time, item in enumerate(range(user % 7, 40 + user % 7)))
    data.write_text("\n".join(lines))
    # What a small machine that others use too can be held to, is held loosely here.
    loose = ("limits.memory_growth=9", "limits.pace_loss=0.99", "limits.data_share=1")
    done = play(out, f"loader.data.path={data}", *loose)
    assert done.returncode == 0, done.stdout + done.stderr
    record = read_json(out / "playbook.json")
    states = {phase["name"]: phase["state"] for phase in record["phases"]}
    assert states.pop("parity") == "skipped"
    assert set(states.values()) == {"done"}, states
    assert record["verdict"] == "passed what was judged; 2 not judged; 1 skipped"
    table = json.loads((out / "deliverables" / "acceptance.json").read_text())["rows"]
    judged = [row for row in table if row["verdict"] == "met"]
    assert all(row["number"] and row["source"] for row in judged)
    open_ones = [row["criterion"] for row in table if row["verdict"] == "not judged"]
    assert open_ones == ["pace >= limits.pace", "efficiency >= limits.efficiency"]
    kept = {path.name for path in (out / "deliverables").iterdir()}
    assert {"git_sha.txt", "collect_env.txt", "nvidia_smi.xml", "buckets.csv", "fused.csv", "attribution.csv"} <= kept
    results = {phase["name"]: phase["results"] for phase in record["phases"]}
    assert results["buckets"]["winner"] in ("bucket_mb=25", "bucket_mb=50", "bucket_mb=100")
    assert results["isolation"]["efficiency"] > 0
    assert results["attribution"]["share.forward"] > 0
    assert results["audit"]["as_promised"] is True

    # A threshold that cannot be met: nothing is run again, the verdict says so, and what to type.
    again = play(out, f"loader.data.path={data}", *loose, "limits.pace=1e12")
    assert again.returncode == 6, again.stdout + again.stderr
    assert "baseline: done already" in again.stdout
    assert "--symptom low_throughput" in again.stderr
    assert read_json(out / "playbook.json")["verdict"].startswith("failed: 1 of")
