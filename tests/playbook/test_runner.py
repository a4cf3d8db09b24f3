"""A playbook from its first phase to its last, with a stand-in for the commands."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.config.source import read_layer
from paceline.errors import GateError, Interrupted, OccupiedError, PacelineError, UsageError
from paceline.files import Lock, read_json
from paceline.playbook.playbook import KINDS
from paceline.playbook.state import PlayRecord
from paceline.telemetry.reader import read_run

Run = Callable[..., PlayRecord]
Calls = Callable[[], list[list[str]]]


def test_the_winner_of_one_phase_is_the_configuration_of_the_next(play: Run, calls: Calls, tmp_path: Path) -> None:
    record = play()
    assert [(phase.name, phase.state) for phase in record.phases] == [
        ("P0", "done"),
        ("P1", "done"),
        ("P2", "done"),
        ("P3", "skipped"),
    ]
    assert [call[0] for call in calls()] == ["train", "sweep", "train"]
    best = read_layer(tmp_path / "out" / "P1" / "sweep" / "best.yaml").entries
    trained = read_layer(tmp_path / "out" / "P2" / "run" / "config.yaml").entries
    for key in ("model.blocks", "train.optimizer.lr"):
        assert trained[key].value == best[key].value
    assert (trained["model.blocks"].value, trained["train.optimizer.lr"].value) == (2, 0.005)
    # Every number of the gates is in the record, and the page was written for a person.
    assert record.phase("P0").gate[1]["values"] == {"first_loss": 5.0, "final_loss": 3.5}
    assert [use["value"] for use in record.phase("P2").uses] == [2, 0.005]
    assert "P3.enabled=true runs it" in record.phase("P3").reason
    page = (tmp_path / "out" / "report.md").read_text()
    assert "paceline train sasrec data.users=60" in page
    assert "test.objective > baseline.test.objective" in page
    assert (tmp_path / "out" / "report.html").exists()
    assert read_json(tmp_path / "out" / "playbook.json")["state"] == "done"

    # The same again runs nothing.
    before = len(calls())
    assert play().state == "done"
    assert len(calls()) == before

    # What is off by default runs when it is asked for, and finds the run of P2.
    again = play("P3.enabled=true")
    assert again.phase("P3").results["equal"] is True
    assert calls()[-1][:2] == ["export", str(tmp_path / "out" / "P2" / "run")]
    assert [call[0] for call in calls()[before:]] == ["export"]


def test_a_gate_that_is_not_met_stops_it_and_another_gate_needs_no_second_training(
    play: Run, calls: Calls, tmp_path: Path
) -> None:
    with pytest.raises(GateError) as caught:
        play("P0.gate=final_loss < 3.0")
    assert caught.value.exit_code == 6
    (problem,) = caught.value.problems
    assert "final_loss = 3.5" in problem.what
    assert "override 'P0.gate=final_loss < 3.0'" in problem.where
    assert "P0.gate=" in problem.do
    stored = read_json(tmp_path / "out" / "playbook.json")
    assert (stored["state"], stored["phases"][0]["state"]) == ("failed", "gate not met")
    assert [call[0] for call in calls()] == ["train"]
    assert play("P0.gate=final_loss < 4.0").state == "done"
    assert [call[0] for call in calls()] == ["train", "sweep", "train"]


def test_other_settings_are_done_again_in_a_directory_of_their_own(
    play: Run, calls: Calls, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play(phases="P0")
    record = play("P0.train.optimizer.lr=0.1", phases="P0")
    assert "train.optimizer.lr: null → 0.1" in capsys.readouterr().out
    assert record.phase("P0").links == {"run": "P0/run-2"}
    assert read_run(tmp_path / "out" / "P0" / "run").run.state == "finished"
    # A sweep keeps its directory: its ledger knows what is still good.
    play("P0.train.optimizer.lr=0.1", start="P1")
    play("P0.train.optimizer.lr=0.1", "P1.axes.model.blocks=[1,2,3]", start="P1")
    sweeps = [call for call in calls() if call[0] == "sweep"]
    assert len({call[-1] for call in sweeps}) == 1
    # P2 has another winner by now, so it is trained again.
    assert [call[-1] for call in calls() if call[0] == "train"][-1] == str(tmp_path / "out" / "P2" / "run-2")


def test_a_command_that_fails_ends_it_with_its_exit_code(
    play: Run, calls: Calls, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FAIL", "train")
    with pytest.raises(PacelineError) as caught:
        play()
    assert caught.value.exit_code == 4
    assert "RankLostError: rank 1 died" in caught.value.problems[0].what
    stored = read_json(tmp_path / "out" / "playbook.json")
    assert (stored["phases"][0]["state"], stored["phases"][0]["tail"]) == ("failed", ["RankLostError: rank 1 died"])
    monkeypatch.delenv("FAIL")
    # It goes on by the training's own resume; what failed before is counted, and the gate says so.
    with pytest.raises(GateError, match="failures = 1"):
        play()


def test_what_did_not_pass_is_not_used_and_what_is_gone_is_made_again(
    play: Run, calls: Calls, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(GateError):
        play("P1.gate=num_cases > 9", start="P1")
    with pytest.raises(UsageError, match="P1 has not been done here"):
        play(start="P2")
    play(start="P1")
    shutil.rmtree(tmp_path / "out" / "P2" / "run")
    before = len(calls())
    play(start="P1")
    assert "P2: run again, because what it left cannot be read (not a run directory" in capsys.readouterr().out
    assert [call[0] for call in calls()[before:]] == ["train"]


def test_a_run_that_somebody_stopped_is_not_done(play: Run, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL", "stop")
    with pytest.raises(Interrupted, match="the run was stopped: stop_command") as caught:
        play(phases="P0")
    assert caught.value.exit_code == 130
    monkeypatch.delenv("FAIL")
    assert play(phases="P0").phase("P0").attempts == 2


def test_a_machine_that_is_not_fit(play: Run, calls: Calls, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FAIL", "unfit")
    with pytest.raises(PacelineError, match="disk: fail, full") as caught:
        play(text=BOTH, phases="look")
    assert caught.value.exit_code == 3
    assert read_json(tmp_path / "out" / "playbook.json")["phases"][0]["results"]["failures"] == 1


def test_a_failed_trial_is_counted(play: Run, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL", "trial")
    with pytest.raises(GateError, match="failures = 1") as caught:
        play(start="P1")
    assert caught.value.exit_code == 6
    play("P1.retry_failed=true", "P1.gate=failures <= 1", start="P1")
    assert "--retry-failed" in [call for call in calls() if call[0] == "sweep"][-1]


BOTH = """
config: sasrec
set: {launch.gpus: []}
phases:
  look: {kind: preflight, quick: true, gate: [failures == 0]}
  fast:
    kind: compare
    a: {train.compile.enabled: false}
    b: {train.compile.enabled: true}
    steps: 30
    warmup_steps: 5
    min_speed_up: 0.05
  full: {kind: train, use: fast.best}
  again: {kind: check, of: full, gate: [equal, full.final_loss < 4, fast.speed_up > 0.05]}
"""


def test_the_other_kinds(play: Run, calls: Calls) -> None:
    record = play(text=BOTH)
    assert [call[0] for call in calls()] == ["preflight", "sweep", "train", "evaluate"]
    assert record.phase("look").results["warnings"] == 1
    assert record.phase("fast").results["speed_up"] == pytest.approx(130 / 120 - 1)
    assert record.phase("fast").results["speed_up_low"] == pytest.approx(1 / (120 / 130 + 0.01) - 1)
    assert [gate["text"] for gate in record.phase("fast").gate] == ["speed_up >= 0.05", "speed_up_low >= 0"]
    assert record.phase("fast").gate[0]["why"] == "as asked for: min_speed_up"
    assert record.phase("full").settings["train.compile.enabled"] is True
    assert [gate["verdict"] for gate in record.phase("again").gate] == ["met"] * 3
    tested = [name for name in record.phase("full").results if name.startswith("test.")]
    assert sorted(tested) == ["test.hr_10", "test.ndcg_10", "test.objective"]  # steps, times and counts are no metrics
    # Nobody reports a name that a gate could not have asked for.
    for phase in record.phases:
        assert [name for name in phase.results if not KINDS[phase.kind].reports.has(name)] == []


def test_a_directory_that_is_not_ours_or_not_free(play: Run, tmp_path: Path, calls: Calls) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").touch()
    with pytest.raises(OccupiedError, match=r"thesis\.tex"):
        play()
    (out / "thesis.tex").unlink()
    holder = Lock(out / ".owner.lock")
    assert holder.acquire()
    with pytest.raises(OccupiedError, match="running already"):
        play()
    holder.release()
    assert calls() == []
    (out / "playbook.json").write_text(
        '{"v": 1, "name": "other", "about": "", "playbook": "", "argv": [], "created": 0, "phases": []}'
    )
    with pytest.raises(UsageError, match="of the playbook other"):
        play()
    (out / "playbook.json").write_text("{")
    with pytest.raises(UsageError, match="damaged"):
        play()
    (out / "playbook.json").write_text('{"v": 99}')
    with pytest.raises(UsageError, match="newer Paceline"):
        play()


@pytest.fixture
def mounted(tmp_path: Path, mount_disk: Callable[[Path, str], None]) -> Path:
    """A small file system that can be made read-only, where the playbook's directory goes."""
    mount_disk(tmp_path / "out", "size=4m")
    return tmp_path / "out"


def test_a_directory_that_becomes_read_only_in_the_middle(play: Run, calls: Calls, mounted: Path) -> None:
    play(phases="P0")
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    before = len(calls())
    with pytest.raises(UsageError, match="cannot write there") as caught:
        play()
    assert caught.value.exit_code == 2
    assert len(calls()) == before
    subprocess.run(["mount", "-o", "remount,rw", str(mounted)], check=True)
    assert play().state == "done"
    assert [call[0] for call in calls()] == ["train", "sweep", "train"]
