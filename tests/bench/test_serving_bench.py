"""`paceline bench serving`: every stage has its latencies, and the tables say what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.bench import serving
from paceline.cli import asking
from paceline.cli.main import run_command
from paceline.errors import UsageError
from paceline.serving.tenrec.service import Settings
from tests.saved_runs import save_run

POINTS = {"p50_ms": 1.0, "p90_ms": 2.0, "p99_ms": 3.0}
ANSWER: dict[str, Any] = {
    "core": 1,
    "torch": "2",
    "model": {"where": "untrained", "kind": "ranker", "mixer": "transformer", "layers": 2, "width": 64},
    "items": 20_000,
    "callers": 4,
    "candidates": 1000,
    "requests": 2,
    "rounds": 3,
    "eager": {
        "total": POINTS,
        "own": POINTS,
        "stages": [{"kind": "source", "name": "towers"} | POINTS],
        "scored": 980,
        "per_s": 100.0,
        "cpu_ms": 9.5,
        "lost": 0,
    },
    "many": {"candidates": 10_000, "filters_ms": 0.5, "diversity_ms": 0.75, "ms": 1.25},
    "acceleration": [
        {"precision": "fp32", "why": "", "compile_s": 12.0, "eager_ms": 6.0, "fast_ms": 3.0, "speed_up": 2.0}
        | {"max_difference": 1e-7, "tolerance": 1e-4, "same_top": 1.0, "total": POINTS, "own": POINTS},
        {"precision": "bf16", "why": "it is not faster", "compile_s": 12.0, "eager_ms": 6.0, "fast_ms": 7.0}
        | {"speed_up": 0.9, "max_difference": None, "tolerance": 5e-2, "same_top": 0.9},
    ],
}


@pytest.mark.timeout(120)
def test_every_stage_has_its_latencies() -> None:
    """In a process of its own, because it keeps to one core."""
    words = "--callers 2 --candidates 50 --requests 2 --rounds 2 --no-accelerate"
    command = [sys.executable, "-m", "paceline.bench.serving", *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    kinds = [stage["kind"] for stage in found["eager"]["stages"]]
    expected = ["query hydrator", "source", "candidate hydrator", "filter", "scorer", "selector"]
    assert list(dict.fromkeys(kinds)) == expected
    for times in (found["eager"]["total"], found["eager"]["own"], *found["eager"]["stages"]):
        assert 0 < times["p50_ms"] <= times["p90_ms"] <= times["p99_ms"]
    assert found["eager"]["lost"] == 0
    assert 10 < found["eager"]["scored"] <= 50
    assert found["many"]["ms"] == pytest.approx(found["many"]["filters_ms"] + found["many"]["diversity_ms"])


def test_only_what_has_a_pipeline_is_measured(tmp_path: Path) -> None:
    save_run(tmp_path / "run", steps=(3,))
    with pytest.raises(UsageError, match="sasrec has no pipeline"):
        serving._build(tmp_path / "run", None, Settings())


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(asking, "ask_worker", lambda arguments: asked.append(arguments) or ANSWER)
    monkeypatch.setenv("COLUMNS", "200")
    assert run_command(["bench", "serving", "runs/a", "--retrieval", "runs/b", "--rounds", "3"]) == 0
    shown = capsys.readouterr().out
    assert "980 left by the filters" in shown
    assert "towers" in shown
    assert "2.00 ×" in shown
    assert "it is not faster" in shown
    assert "10,000 candidates filtered and diversified: 1.25 ms" in shown
    assert asked[0][:3] == ["paceline.bench.serving", "--run=runs/a", "--retrieval=runs/b"]
    assert run_command(["bench", "serving", "--no-accelerate", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == ANSWER
    assert asked[1][-1] == "--no-accelerate"
