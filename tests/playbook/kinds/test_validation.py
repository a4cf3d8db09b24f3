"""What the kinds of a validation read from a run: isolation, endurance, loader, audit, ranges, parity, and the verdict on all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.files import write_json
from paceline.playbook.gate import judge
from paceline.playbook.kinds.accept import Row, judge_record, say_verdict
from paceline.playbook.kinds.audit import Audit, find_fallbacks
from paceline.playbook.kinds.endure import Endure
from paceline.playbook.kinds.isolate import Isolate
from paceline.playbook.kinds.loader import Loader
from paceline.playbook.kinds.parity import Parity
from paceline.playbook.kinds.ranges import Ranges
from paceline.playbook.phase import Scene, Work
from paceline.playbook.state import PhaseRecord
from paceline.telemetry.reader import read_run
from tests.playbook.kinds.runs import write_run


def choice(about: str, requested: object, effective: object) -> tuple[str, dict[str, object]]:
    return "choice", {"about": about, "requested": requested, "effective": effective, "reason": "so"}


def test_efficiency_is_a_rank_among_others_over_one_alone(tmp_path: Path) -> None:
    alone = write_run(tmp_path / "isolation" / "run", [{"units_per_s": 100.0}] * 12)
    together = write_run(tmp_path / "baseline" / "run", [{"units_per_s": 180.0}] * 12, world_size=2)
    phase = Isolate(kind="isolate", against="baseline")
    scene = Scene("isolation", tmp_path / "isolation", 1, "sasrec", {}, earlier={"baseline": {"run": together}})
    work = phase.plan_work(scene)
    assert work.place == alone
    outcome = phase.read(work)
    assert (outcome.results["efficiency"], outcome.results["per_rank"]) == (0.9, 90.0)
    source = outcome.sources["efficiency"]
    assert source.startswith(
        "baseline/run/metrics.csv, steps 11 to 60 (10 rows), 2 ranks, over isolation/run/metrics.csv"
    )


def endured(tmp_path: Path, memory: float, *events: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """The results of a run of 60 rows whose memory grows by so much in each."""
    rows = [{"units_per_s": 100.0, "memory_gib": 1.0 + memory * number} for number in range(60)]
    root = write_run(tmp_path / "run", rows, events)
    return dict(Endure(kind="endure").read(Work([], root, {})).results)


def test_a_long_run_without_anything(tmp_path: Path) -> None:
    found = endured(tmp_path, 0.0)
    assert (found["incidents"], found["findings"], found["gates_closed"]) == (0, 0, 0)
    assert (found["memory_growth_high"], found["pace_change_high"]) == (0.0, 0.0)
    assert Endure(kind="endure").criteria(found) == [], "a model without gates is not asked for them"


def test_a_leak_an_incident_and_closed_gates_are_seen(tmp_path: Path) -> None:
    seen = {"step": 300, "values": {"gate_entropy": 0.1, "gate_collapsed": 0.75}}
    incident = {"incident": "0001-stall-rank1", "finding": {"kind": "stall"}}
    closed = {"finding": {"kind": "gate_collapse", "what": "a gate has closed"}}
    events = [("observation", seen), ("incident", incident), ("incident", incident), ("finding", closed)]
    found = endured(tmp_path, 0.01, *events)
    assert (found["incidents"], found["gates_closed"], found["observed.gate_collapsed"]) == (1, 1, 0.75)
    assert found["memory_growth_low"] > 0.15
    asked = [text for text, _ in Endure(kind="endure").criteria(found)]
    assert asked == ["gates_closed == 0", "observed.gate_collapsed <= limits.gate_collapsed"]


def test_too_short_a_run_has_no_plateau(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run", [{"units_per_s": 1.0, "memory_gib": 1.0}] * 10)
    outcome = Endure(kind="endure").read(Work([], root, {}))
    assert outcome.results["memory_growth_high"] is None
    lack = "5 rows in the second half of the run, and a slope needs 8"
    assert outcome.sources["memory_growth_high"].endswith("metrics.csv, the second half of the run")
    condition = ("memory_growth_high <= limits.memory_growth", "")
    (judged,) = judge([condition], outcome.results, {}, {}, "", {"memory_growth": 0.1}, outcome.untold, outcome.missing)
    assert (judged.verdict, judged.why, judged.is_missed) == ("not measured", lack, True)


def test_gates_that_nobody_looked_at_are_not_measured(tmp_path: Path) -> None:
    """Attention of branches has gates whether the run tells of them or not; a dense one has none."""
    rows = [{"units_per_s": 100.0, "memory_gib": 1.0}] * 40
    sparse, dense = choice("model.sparse", "auto", "sparse"), choice("model.sparse", "auto", "dense")
    partly = ("observation", {"step": 5, "values": {"gate_entropy": 0.5}})
    phase = Endure(kind="endure")
    for name, events, verdicts in (
        ("none", [sparse], ["not measured", "not measured"]),
        ("partly", [sparse, partly], ["met", "not measured"]),
        ("dense", [dense], []),
    ):
        outcome = phase.read(Work([], write_run(tmp_path / name, rows, events), {}))
        asked = phase.criteria(outcome.results)
        reported = dict.fromkeys(phase.reports.names)
        judged = judge(asked, outcome.results, {}, reported, "", {"gate_collapsed": 0.5}, {}, outcome.missing)
        assert [each.verdict for each in judged] == verdicts, name
        assert all("tells nothing of the model's gates" in each.why for each in judged if each.is_missed)
        assert any(each.what == "gates" for each in outcome.evidence) is (name != "dense")


def test_memory_that_nobody_tells_is_not_judged(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run", [{"units_per_s": 1.0}] * 40)
    outcome = Endure(kind="endure").read(Work([], root, {}))
    assert outcome.untold["memory_growth_high"] == "no row tells of memory"
    condition = ("memory_growth_high <= limits.memory_growth", "")
    (judged,) = judge([condition], outcome.results, {}, {}, "", {"memory_growth": 0.1}, outcome.untold)
    assert (judged.verdict, judged.why, judged.is_missed) == ("not judged", "no row tells of memory", False)


def test_the_share_of_a_step_that_waits_for_data(tmp_path: Path) -> None:
    rows = [{"data_ms": 3000.0, "step_ms": 3010.0, "window_steps": 1, "step": 1}]
    rows += [{"data_ms": 2.0, "step_ms": 10.0, "window_steps": 1, "step": step} for step in (2, 3)]
    outcome = Loader(kind="loader").read(Work([], write_run(tmp_path / "loader" / "run", rows), {}))
    assert outcome.results["data_share"] == pytest.approx(0.2)
    assert outcome.results["first_batch_s"] == 3.0
    assert outcome.sources["data_share"].endswith("loader/run/metrics.csv, data_ms over step_ms, steps 2 to 3")


def test_what_was_asked_for_and_not_served_is_a_fallback(tmp_path: Path) -> None:
    served = [choice("attention.impl", "auto", "sdpa"), choice("precision.mode", "bf16", "bf16")]
    served += [choice("model.sparse_path", "torch", "torch"), choice("device", "auto", "cuda:0")]
    assert find_fallbacks(read_run(write_run(tmp_path / "a", [], served))) == []
    refused = [choice("attention.impl", "flash", "sdpa"), choice("device", "auto", "cuda:0")]
    refused += [choice("model.sparse_path", "auto", "torch")]
    assert find_fallbacks(read_run(write_run(tmp_path / "b", [], refused))) == [
        "attention.impl: flash → sdpa (so)",
        "model.sparse_path: auto → torch (so)",
    ]
    # Where there is no GPU, plain torch is what there is.
    cpu = [choice("device", "auto", "cpu"), choice("model.sparse_path", "auto", "torch")]
    assert find_fallbacks(read_run(write_run(tmp_path / "c", [], cpu))) == []


def test_a_recipe_without_attention_has_nothing_to_audit(tmp_path: Path) -> None:
    phase = Audit(kind="audit", of="profiled")
    root = write_run(tmp_path / "run", [])
    work = phase.plan_work(Scene("audit", tmp_path, 1, "sasrec", {}, earlier={"profiled": {"run": root}}))
    assert list(work.arguments) == []
    assert "tells of no attention" in phase.read(work).skipped
    later = phase.plan_work(Scene("audit", tmp_path, 1, "sasrec", {}))
    assert later.arguments[3] == "<profiled.run>"


def test_an_audit_against_the_promise(tmp_path: Path) -> None:
    phase = Audit(kind="audit", of="profiled")
    root = write_run(tmp_path / "run", [], [choice("attention.backend", "sdpa", "flash")])
    work = phase.plan_work(Scene("audit", tmp_path, 1, "sasrec", {}, earlier={"profiled": {"run": root}}))
    seen = {"backend": "math", "names": ["softmax"], "count": 4, "time_ms": 1.5}
    audit = {"promised": "flash", "wrong": "math ran", "seen": [seen], "branches": {}, "traces": [str(root / "a.json")]}
    write_json(work.place, audit)
    outcome = phase.read(work)
    assert outcome.results == {"as_promised": False, "fallbacks": 0, "backend": "flash"}
    assert outcome.tables[0].rows == [["math", "", "4", "1.500", "softmax"]]


def test_ranges_and_parity_are_read_as_they_are_told(tmp_path: Path) -> None:
    ranges = Ranges(kind="ranges", of="profiled")
    work = ranges.plan_work(Scene("ranges", tmp_path, 1, "nsa", {}))
    row = {"name": "nsa window", "inside": "forward", "calls": 6, "ms": 2.0, "share": 0.25}
    told = {"trace": "run/a.json", "clock": "host", "num_steps": 3, "covered": 0.9, "ranges": [row]}
    write_json(work.place, told)
    assert ranges.read(work).results == {"covered": 0.9, "num_steps": 3, "num_ranges": 1, "share.nsa_window": 0.25}
    write_json(work.place, told | {"note": "no stages"})
    assert [each.value for each in ranges.read(work).evidence] == ["90.0% of a step", "no stages"]
    parity = Parity(kind="parity", length=64)
    work = parity.plan_work(Scene("parity", tmp_path, 1, "nsa", {}))
    assert list(work.arguments) == ["bench", "parity", "--seed", "0", "--length", "64", "--json"]
    line = {
        "case": "a",
        "path": "torch",
        "precision": "fp32",
        "worst": "output",
        "error": 1e-4,
        "limit": 1e-5,
        "ok": False,
    }
    told = {"rows": [line], "times": {"torch": {"total_ms": 2.0}}, "fast_is_faster": None, "fast": "no GPU"}
    write_json(work.place, told | {"device": "cpu", "length": 64})
    found = parity.read(work)
    assert (found.results["equal"], found.results["has_fast"], found.results["num_different"]) == (False, False, 1)
    assert found.tables[0].rows[0][-1] == "wrong"


@pytest.mark.parametrize(
    ("verdicts", "says"),
    [
        (["met", "met"], "passed"),
        (["met", "not judged"], "passed what was judged; 1 not judged"),
        (["met", "not judged", "skipped"], "passed what was judged; 1 not judged; 1 skipped"),
        (["met", "not met", "not judged"], "failed: 1 of 3 not met (P); 1 not judged"),
        (["met", "not measured"], "failed: 1 of 2 not met (P)"),
        (["met", "failed"], "failed: 1 of 2 not met (P)"),
        (["not judged", "skipped"], "nothing was judged; 1 not judged; 1 skipped"),
        ([], "nothing was judged"),
    ],
)
def test_a_verdict_claims_no_more_than_was_judged(verdicts: list[str], says: str) -> None:
    assert say_verdict([Row("P", "x", "1", "a.csv", verdict) for verdict in verdicts]) == says


def test_a_missed_condition_is_a_row_with_its_file_its_threshold_and_the_next_command() -> None:
    values = {"pace": 12.0, "limits.pace": 39.0}
    gate = [{"text": "pace >= limits.pace", "verdict": "not met", "values": values, "why": ""}]
    record = PhaseRecord(
        "baseline", "train", state="gate not met", has_run=True, gate=gate, remedy=["paceline triage r"]
    )
    record.sources = {"pace": "baseline/run/metrics.csv, steps 151 to 200"}
    (row,) = judge_record(record)
    assert row == Row(
        "baseline",
        "pace >= limits.pace   (limits.pace = 39)",
        "pace = 12",
        "baseline/run/metrics.csv, steps 151 to 200",
        "not met",
        "type paceline triage r",
    )
    (skipped,) = judge_record(PhaseRecord("parity", "parity", state="skipped", reason="no paths"))
    assert (skipped.verdict, skipped.why) == ("skipped", "no paths")
