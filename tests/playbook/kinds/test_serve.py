from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.playbook.kinds.serve import Serve
from paceline.playbook.phase import Scene

TIMES = {"p50_ms": 4.0, "p90_ms": 6.0, "p99_ms": 9.5}


def answer(*programs: dict[str, Any]) -> dict[str, Any]:
    stages = [{"kind": "filter", "name": "seen", **TIMES}]
    eager = {"total": TIMES, "stages": stages, "per_s": 210.0, "lost": 0, "scored": 400, "cpu_ms": 4.0}
    many = {"candidates": 10_000, "filters_ms": 1.0, "diversity_ms": 0.4, "ms": 1.4}
    common = {"callers": 4, "candidates": 1000, "items": 20_000}
    return common | {"eager": eager, "many": many, "acceleration": list(programs)}


def scene(root: Path, **links: Path) -> Scene:
    return Scene("serving", root, 1, "tenrec", {}, earlier={name: {"run": run} for name, run in links.items()})


def test_both_runs_are_asked(tmp_path: Path) -> None:
    phase = Serve(kind="serve", of="P2", retrieval="towers", candidates=500)
    assert phase.trained() == {"of": "P2", "retrieval": "towers"}
    work = phase.plan_work(scene(tmp_path, P2=tmp_path / "a", towers=tmp_path / "b"))
    assert list(work.arguments[:5]) == ["bench", "serving", str(tmp_path / "a"), "--retrieval", str(tmp_path / "b")]
    assert work.arguments[-2:] == ["--no-accelerate", "--json"]
    # What is not known yet has a name; another run is another work.
    later = phase.plan_work(scene(tmp_path))
    assert later.arguments[2] == "<P2.run>"
    assert later.fingerprint(tmp_path) != work.fingerprint(tmp_path)


def test_what_it_reports(tmp_path: Path) -> None:
    phase = Serve(kind="serve", of="P2")
    work = phase.plan_work(scene(tmp_path, P2=tmp_path / "a"))
    work.place.write_text(json.dumps(answer()))
    outcome = phase.read(work)
    assert outcome.results == TIMES | {"requests_per_s": 210.0, "lost": 0, "filters_ms": 1.4}
    assert set(outcome.results) | {"seconds"} == set(phase.reports.names) - set(phase.silent())
    assert any(row.what == "filter seen" for row in outcome.evidence)


def test_an_acceleration_counts_where_it_is_equal(tmp_path: Path) -> None:
    phase = Serve(kind="serve", of="P2", accelerate=True)
    work = phase.plan_work(scene(tmp_path, P2=tmp_path / "a"))
    assert "--no-accelerate" not in work.arguments
    whole = {"precision": "fp32", "is_equal": False, "speed_up": 9.0, "eager_ms": 9.0, "fast_ms": 1.0, "why": "differs"}
    half = whole | {"precision": "bf16", "is_equal": True, "speed_up": 2.5, "why": ""}
    work.place.write_text(json.dumps(answer(whole, half)))
    found = phase.read(work).results
    assert (found["equal"], found["speed_up"]) == (True, 1.5)
    work.place.write_text(json.dumps(answer(whole)))
    assert phase.read(work).results["equal"] is False


def test_without_acceleration_nobody_may_ask_for_it() -> None:
    assert set(Serve(kind="serve", of="P2").silent()) == {"equal", "speed_up"}
    with pytest.raises(ValueError, match="callers"):
        Serve(kind="serve", of="P2", callers=0)
