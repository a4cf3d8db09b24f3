"""A sweep on a GPU: a case that does not fit is a verdict, the others are measured, and it cost device-seconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cli.main import run_command

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
PLAN = """
recipe: sasrec
set:
  launch.nproc: 1
  launch.gpus: [0]
  data.users: 2000
  data.events_per_user: 1000
  data.max_length: 1000
  model.width: 1024
  train.global_batch: 2000
axes: {train.micro_batch: [16, 2000]}
steps: 4
warmup_steps: 1
window: 1
repeats: 1
racing: false
"""


def test_out_of_memory_is_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.yaml").write_text(PLAN)
    assert run_command(["sweep", "plan.yaml", "--out", "s"]) == 0
    described = json.loads(Path("s/sweep.json").read_text())
    cases = {case["name"]: case for case in described["cases"]}
    assert cases["micro_batch=2000"]["verdict"] == "does not fit"
    assert cases["micro_batch=16"]["verdict"] == "winner"
    assert cases["micro_batch=16"]["memory_gib"] > 1
    assert described["best"] == "micro_batch=16"
    assert [trial["status"] for trial in sorted(described["trials"], key=lambda t: t["case"])] == ["ok", "oom"]
    assert described["costs"]["device_s"] > 0
