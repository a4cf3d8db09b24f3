"""`paceline bench`: what its commands print, and what they refuse before anything is measured."""

from __future__ import annotations

import json

import pytest

from paceline.bench.scaling import Timed
from paceline.bench.telemetry import Cost
from paceline.cli import bench_loader, bench_ranges, bench_scaling, bench_telemetry
from paceline.cli.main import run_command
from paceline.errors import UsageError

TOLD = {
    "device": "CPU, 2 threads",
    "world_size": 1,
    "parameters": 2_097_152,
    "tokens": 256,
    "block_steps": 10,
    "blocks": [[True, 0.303], [False, 0.3], [False, 0.3], [True, 0.303]],
    "direct_us": {"pulse": 0.5, "borders": 1.5, "wait": 0.25, "row": 200.0, "heartbeat": 20.0},
}


def test_telemetry(monkeypatch, capsys):
    asked = {}
    monkeypatch.setattr(
        "paceline.bench.telemetry.measure", lambda *words, **options: asked.update(options, words=words) or Cost(TOLD)
    )
    bench_telemetry.command(repeats=2, nproc=3)
    assert asked == {"words": (2, 3), "parameters": 1e6, "tokens": None}
    shown = capsys.readouterr().out
    assert "a step without telemetry takes 30.0 ms; with it 1 % more (1 % to 1 %, 95 %, 2 pairs of 10 steps)" in shown
    assert "target at most 1 %" in shown
    bench_telemetry.command(as_json=True)
    summary = json.loads(capsys.readouterr().out)
    assert summary["share"] == pytest.approx(0.01)
    assert summary["direct_us"] == pytest.approx(4 * 0.5 + 1.5 + 0.25 + 200.5 / 10 + 20 * 30 / 5000, abs=0.01)


@pytest.mark.parametrize("name", ["sharding", "checkpoint", "telemetry"])
@pytest.mark.parametrize("size", ["nan", "inf", "1e13", "5"])
def test_a_model_that_nobody_can_build_is_refused(name, size, capsys):
    assert run_command(["bench", name, "--parameters", size]) == 2
    assert "is not a size that can be measured (1e6 to 1e12)" in capsys.readouterr().err


def test_scaling(monkeypatch, capsys):
    timed = [
        Timed(0, kind, ranks, 8, ms, "CPU") for kind, ranks, ms in (("weak", 1, 10), ("weak", 2, 20), ("strong", 2, 10))
    ]
    monkeypatch.setattr("paceline.bench.scaling.measure", lambda ranks, repeats: iter(timed))
    bench_scaling.command(ranks="1,2")
    shown = capsys.readouterr().out
    assert shown.count("0.500 … 0.500") == 2
    with pytest.raises(UsageError, match="not a list of world sizes"):
        bench_scaling.command(ranks="1,two")


def test_loader(monkeypatch, capsys):
    row = {"workers": 2, "first_batch_ms": 5.0, "samples_per_s": 800.0, "delivered_mb_per_s": 3.0, "disk_mb_per_s": 0.0}
    measured = {"global_batch": 64, "step_ms": 9.0, "data_ms": 1.0, "samples_per_s": 400.0}
    told = measured | {"rows": [row | {"times_needed": 2.0}]}
    monkeypatch.setattr(
        "paceline.bench.loader.measure", lambda target, overrides: told | {"asked": [target, *overrides]}
    )
    bench_loader.command("sasrec", ["data.placement=host"])
    assert "needs 400 samples/s" in capsys.readouterr().out
    bench_loader.command("sasrec", ["data.placement=host"], as_json=True)
    assert json.loads(capsys.readouterr().out)["asked"] == ["sasrec", "data.placement=host"]


def test_ranges(tmp_path, monkeypatch, capsys):
    row = {"name": "nsa window", "inside": "forward", "calls": 6, "ms": 2.0, "share": 0.25}
    told = {"trace": "a.json", "clock": "host", "num_steps": 3, "covered": 0.9, "note": "", "ranges": [row]}
    monkeypatch.setattr("paceline.bench.range_trace.measure_ranges", lambda root: told | {"root": str(root)})
    bench_ranges.command("runs/a")
    shown = capsys.readouterr().out
    assert "nsa window" in shown
    assert "25.0%" in shown
    told["note"] = "no stages inside the phases: [see] " + "x" * 200
    bench_ranges.command("runs/a")
    assert capsys.readouterr().out.splitlines()[-1] == told["note"], "one line, to be copied"
    bench_ranges.command("runs/a", as_json=True)
    assert json.loads(capsys.readouterr().out)["root"] == "runs/a"
    monkeypatch.undo()
    assert run_command(["bench", "ranges", str(tmp_path)]) == 2
