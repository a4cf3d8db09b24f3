"""Phases that need not pass: the playbook goes on without them, says what to type, and ends with what was not met."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.errors import GateError
from paceline.files import read_json
from paceline.playbook.state import PlayRecord

Run = Callable[..., PlayRecord]
Calls = Callable[[], list[list[str]]]
BOOK = """
config: sasrec
set: {data.users: 60, launch.gpus: []}
limits: {pace: null, loss: 9}
phases:
  first:
    kind: train
    required: false
    set: {train.max_steps: 4, train.epochs: null}
    gate: [failures == 0, final_loss <= limits.loss, pace >= limits.pace]
    remedy: ["paceline triage {run} --symptom low_throughput", "paceline train {config} model.blocks=1"]
  again: {kind: check, required: false, of: first, gate: [equal]}
  other: {kind: sweep, required: false, when: world_size > 1, otherwise: one rank, axes: {model.blocks: [1, 2]}, steps: 30}
  accept: {kind: accept, required: false, gate: [failed == 0]}
"""


def rows(out: Path) -> dict[tuple[str, str], dict[str, str]]:
    table = json.loads((out / "deliverables" / "acceptance.json").read_text())
    return {(row["phase"], row["criterion"].partition("   ")[0]): row for row in table["rows"]}


def test_what_has_no_threshold_is_not_judged_and_does_not_pass(play: Run, calls: Calls, tmp_path: Path) -> None:
    record = play(text=BOOK)
    assert record.state == "done"
    assert record.verdict == "passed what was judged; 1 not judged; 1 skipped"
    found = rows(tmp_path / "out")
    pace = found["first", "pace >= limits.pace"]
    assert (pace["verdict"], pace["number"]) == ("not judged", "pace = 103")
    assert "limits.pace=NUMBER" in pace["why"]
    assert pace["source"] == "first/run/metrics.csv, samples_per_s, steps 2 to 4 (3 rows)"
    assert found["other", ""]["why"] == "one rank"
    assert (tmp_path / "out" / "deliverables" / "first" / "metrics.csv").is_file()
    assert "passed what was judged" in (tmp_path / "out" / "report.html").read_text()

    # A threshold that is set later runs nothing again.
    before = len(calls())
    assert play("limits.pace=50", text=BOOK).verdict == "passed what was judged; 1 skipped"
    assert len(calls()) == before


def test_it_goes_on_and_says_what_to_type(play: Run, tmp_path: Path) -> None:
    with pytest.raises(GateError) as caught:
        play("limits.loss=1", text=BOOK)
    first, last = caught.value.problems
    assert "final_loss = 3.5" in first.what
    run = tmp_path / "out" / "first" / "run"
    assert first.do == f"type paceline triage {run} --symptom low_throughput ; paceline train sasrec model.blocks=1"
    assert "failed == 0" in last.what
    stored = read_json(tmp_path / "out" / "playbook.json")
    # The run is there, although its gate is not met: what looks at it could.
    assert [(phase["name"], phase["state"]) for phase in stored["phases"]] == [
        ("first", "gate not met"),
        ("again", "done"),
        ("other", "skipped"),
        ("accept", "gate not met"),
    ]
    assert stored["verdict"] == "failed: 1 of 5 not met (first); 1 not judged; 1 skipped"
    assert "--symptom low_throughput" in rows(tmp_path / "out")["first", "final_loss <= limits.loss"]["why"]
    page = (tmp_path / "out" / "report.md").read_text()
    assert page.index("## Acceptance") < page.index("## Phases")
    assert "type next" in page

    # Mended, everything that was run stays run.
    assert play(text=BOOK).verdict == "passed what was judged; 1 not judged; 1 skipped"


def test_what_needs_a_phase_that_failed_is_skipped_and_the_rest_is_not(
    play: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FAIL", "train")
    with pytest.raises(GateError) as caught:
        play("launch.nproc=2", text=BOOK)
    assert "RankLostError" in caught.value.problems[0].what
    stored = {phase["name"]: phase for phase in read_json(tmp_path / "out" / "playbook.json")["phases"]}
    assert stored["again"]["reason"] == "it looks at first, which is failed"
    assert stored["other"]["state"] == "done"
    assert rows(tmp_path / "out")["first", "ends well"]["verdict"] == "failed"


def test_evidence_of_other_settings_is_not_that_of_this_one(play: Run, tmp_path: Path) -> None:
    """A phase that was not asked for this time counts where it was done with the same settings, and nowhere else."""
    deliverables = tmp_path / "out" / "deliverables"
    play("launch.nproc=2", text=BOOK)
    assert rows(tmp_path / "out")["first", "failures == 0"]["verdict"] == "met"
    assert (deliverables / "first" / "metrics.csv").is_file()
    (deliverables / "mine.txt").write_text("of the operator")

    again = play("launch.nproc=2", text=BOOK, phases="accept")
    assert again.verdict.startswith("passed what was judged; 1 not judged")
    assert rows(tmp_path / "out")["first", "failures == 0"]["verdict"] == "met"

    other = play("launch.nproc=2", "data.users=70", text=BOOK, phases="accept")
    assert other.verdict == "nothing was judged; 3 skipped"
    first = rows(tmp_path / "out")["first", ""]
    assert (first["verdict"], first["number"]) == ("skipped", "")
    assert "what it left is of other settings (data.users: 60 → 70)" in first["why"]
    assert sorted(path.name for path in deliverables.rglob("*") if path.is_file()) == [
        "acceptance.csv",
        "acceptance.json",
        "mine.txt",
    ]
    assert "of other settings" in (tmp_path / "out" / "report.md").read_text()

    # What looks at such a run has nothing to look at; what makes no sense any more is not counted either.
    record = play("launch.nproc=1", text=BOOK, phases="again,other,accept")
    assert "of which there is nothing that was asked for now" in record.phase("again").outdated
    assert rows(tmp_path / "out")["other", ""]["why"] == "one rank"


def test_a_verdict_is_not_there_before_everything_was_judged_again(play: Run) -> None:
    play(text=BOOK)
    record = play(text=BOOK, phases="first")
    assert (record.verdict, record.phase("accept").state) == ("", "skipped")
