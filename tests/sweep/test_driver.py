"""A whole sweep with a torch-free script: what is run, kept, run again, ended, and what the files say."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import yaml

from paceline.cli.main import run_command
from paceline.sweep.ledger import Ledger
from paceline.sweep.trial import MARK
from paceline.telemetry.reader import read_run
from paceline.telemetry.run_file import Attempt, load_run_file
from tests.sweep.conftest import Place

pytestmark = pytest.mark.timeout(120)


def read(place: Place) -> dict[str, object]:
    found: dict[str, object] = json.loads((place.out / "sweep.json").read_text())
    return found


def ledger_rows(place: Place) -> list[dict[str, object]]:
    ledger = Ledger(place.out / "ledger.sqlite")
    try:
        return [vars(row) for row in ledger.rows()]
    finally:
        ledger.close()


def table(path: Path, delimiter: str = ",") -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines(), delimiter=delimiter))


def marked(place: Place) -> list[int]:
    """Processes of this sweep's trials that still live."""
    with sqlite3.connect(place.out / "ledger.sqlite") as database:
        (name,) = database.execute("SELECT value FROM sweep WHERE name = 'id'").fetchone()
    database.close()
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK, "").startswith(f"{name}-") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def test_two_cases_then_a_third_and_then_other_code(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert place.sweep() == 0
    out = place.out
    described = read(place)
    assert described["state"] == "finished"
    assert described["best"] == "speed=4"
    manifest = table(out / "run_manifest.tsv", "\t")
    assert [row["status"] for row in manifest] == ["ok", "ok"]
    named = {"exit_code", "duration_sec", "last_step", "requested_precision", "effective_precision"}
    assert named | {"requested_attention", "effective_attention"} <= manifest[0].keys()
    assert {row["last_step"] for row in manifest} <= {"30", "31", "32"}
    for name in ("per_run_metrics.csv", "group_summary.csv", "ranked_groups.csv"):
        rows = table(out / name)
        assert len(rows) == 2
        assert {"tail_mean_iter_p50_ms", "tail_samples_per_sec_mean"} <= rows[0].keys()
    assert [row["group"] for row in table(out / "ranked_groups.csv")] == ["speed=4", "speed=1"]
    best = yaml.safe_load((out / "best.yaml").read_text())
    assert best["command"]["params"] == {"speed": 4, "how": "well"}
    assert best["train"]["max_steps"] is None
    assert run_command(["train", str(out / "best.yaml"), "--dry-run"]) == 0
    # A value added to an axis runs what is new, and nothing else.
    assert place.sweep("axes.params.speed=[1,4,64]") == 0
    assert [(row["case"], row["status"]) for row in ledger_rows(place)][2:] == [("speed=64", "ok")]
    assert read(place)["best"] == "speed=64"  # by far: a busy machine must not change it
    # The same command again: nothing to do.
    assert place.sweep() == 0
    assert len(ledger_rows(place)) == 3
    # Another script is other code: its results are not mixed with these, and that is said.
    script = place.path / "fake.py"
    script.write_text(script.read_text() + "\n# another version\n")
    capsys.readouterr()
    assert place.sweep() == 0
    assert "results of other code are in the ledger and are not reused" in capsys.readouterr().out
    rows = ledger_rows(place)
    assert len(rows) == 5
    described = read(place)
    counted = [trial["trial"] for trial in described["trials"] if trial["is_counted"]]  # type: ignore[attr-defined, index]
    assert counted == [4, 5]


def test_another_objective_reads_the_same_trials_anew(place: Place) -> None:
    script = place.path / "fake.py"
    script.write_text(script.read_text().replace("loss {loss}", "loss {loss} up {speed} down {9 - speed}"))
    place.write(lambda text: text.replace("samples: ", r"up: 'up (\d+)', down: 'down (\d+)', samples: "))
    assert place.sweep("objective=up", "direction=max") == 0
    assert [case["metric"] for case in read(place)["cases"]] == [4.0, 1.0]  # type: ignore[attr-defined]
    assert place.sweep("objective=down", "direction=max") == 0
    assert len(ledger_rows(place)) == 2
    assert {trial["metric"] for trial in read(place)["trials"]} == {5.0, 8.0}  # type: ignore[attr-defined]


@pytest.mark.slow
def test_every_way_to_fail_is_a_result_and_leaves_no_process(place: Place) -> None:
    hows = "[well,fails,memory,diverges,short,forks,deaf,silent]"
    place.write(lambda text: text.replace("params.speed: [1, 4]", f"params.how: {hows}"))
    assert place.sweep("trial_timeout_s=12", "tail_lines=5", "slots=2") == 0
    status = {str(row["case"]): (row["status"], str(row["reason"])) for row in ledger_rows(place)}
    assert status["how=well"] == ("ok", "")
    assert status["how=fails"][0] == "failed"
    assert "a disk on fire" in status["how=fails"][1]
    assert status["how=memory"][0] == "oom"
    assert status["how=diverges"][0] == "diverged"
    assert status["how=short"] == ("failed", "it ended by itself after step 20; 30 were asked for")
    assert status["how=forks"][0] == "ok"
    assert status["how=deaf"][0] == "ok"
    assert status["how=silent"][0] == "timeout"
    assert "trial_timeout_s=12" in status["how=silent"][1]
    assert marked(place) == []
    cases = {case["name"]: case for case in read(place)["cases"]}  # type: ignore[attr-defined, index]
    assert cases["how=memory"]["verdict"] == "does not fit"
    assert cases["how=diverges"]["verdict"] == "diverges"
    assert {cases[f"how={how}"]["verdict"] for how in ("fails", "short", "silent")} == {"failed"}
    assert cases["how=fails"]["rank"] > cases["how=well"]["rank"]
    log = (place.out / "driver.log").read_text()
    assert "    a disk on fire" in log


def kill_and_start_again(place: Place, num_trials: int, num_kills: int, seed: int) -> None:
    chance = random.Random(seed)
    print(f"seed {seed}")
    for _ in range(num_kills):
        driver = place.start()
        try:
            driver.wait(chance.uniform(0.2, 3.0))
        except subprocess.TimeoutExpired:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    assert place.sweep() == 0
    rows = ledger_rows(place)
    good = [row for row in rows if row["status"] == "ok"]
    assert len(good) == num_trials
    lost = [row for row in rows if row["status"] == "interrupted"]
    assert all(row["record"]["duration_s"] == row["ended"] - row["began"] for row in lost)  # type: ignore[index, operator]
    assert len({(row["key"], row["round"]) for row in good}) == num_trials
    assert {row["status"] for row in rows} <= {"ok", "interrupted"}
    assert len({row["directory"] for row in rows}) == len(rows)
    for row in good:
        run = read_run(place.out / str(row["directory"]))
        assert len(run.run.attempts) == 1
        assert run.run.state == "finished"
        steps = [line["step"] for line in run.metrics]
        assert steps == sorted(set(steps))
    pulses = [Path(attempt.pulses) for row in rows for attempt in _attempts(place.out / str(row["directory"]))]
    assert [path for path in pulses if path.exists()] == []
    assert sum(trial["is_counted"] for trial in read(place)["trials"]) == num_trials  # type: ignore[attr-defined, index]
    assert marked(place) == []


def _attempts(root: Path) -> list[Attempt]:
    run = load_run_file(root)
    return run.attempts if run is not None else []


def test_a_driver_killed_at_any_moment_goes_on(place: Place) -> None:
    kill_and_start_again(place, num_trials=2, num_kills=3, seed=6)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_twenty_kills_of_a_sweep_of_twelve_trials(place: Place) -> None:
    place.write(lambda text: text.replace("[1, 4]", "[1, 2, 3, 4, 5, 6]").replace("repeats: 1", "repeats: 2"))
    kill_and_start_again(place, num_trials=12, num_kills=20, seed=7)


def test_a_second_driver_is_refused_and_ctrl_c_leaves_a_valid_summary(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.write(lambda text: text.replace("params.speed: [1, 4]", "params.how: [silent]"))
    driver = place.start()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list(place.out.glob("trials/*/logs/rank_00000.log")):
        time.sleep(0.05)
    assert place.sweep() == 2
    assert f"process {driver.pid} runs it" in capsys.readouterr().err
    driver.send_signal(signal.SIGINT)
    assert driver.wait(30) == 130
    assert read(place)["state"] == "stopped"
    assert [row["status"] for row in ledger_rows(place)] == ["interrupted"]
    assert "goes on where it was" in (place.path / "started.log").read_text()
    assert marked(place) == []


def test_a_trial_whose_loss_breaks_is_ended_there_and_one_killed_for_memory_is_tried_once_more(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = place.path / "fake.py"
    broken = script.read_text().replace('if how == "diverges" and step == 30', 'if how == "never"')
    script.write_text(
        broken.replace(
            'if how == "short"', 'if how == "killed" and step == 15: os.kill(os.getpid(), 9)\n    if how == "short"'
        )
    )
    monkeypatch.setattr("paceline.sweep.trial.Trial.saw_memory_killer", True)
    place.write(lambda text: text.replace("params.speed: [1, 4]", "params.how: [diverges, killed]"))
    place.write(lambda text: text.replace("steps: 30", "steps: 30000"))
    assert place.sweep("trial_timeout_s=60", "slots=2") == 4
    found = {str(row["case"]): [] for row in ledger_rows(place)}  # type: dict[str, list[tuple[object, str]]]
    for row in ledger_rows(place):
        found[str(row["case"])].append((row["status"], str(row["reason"])))
    ((status, reason),) = found["how=diverges"]
    assert status == "diverged"
    assert reason.endswith("; it was ended there")
    first, second = found["how=killed"]
    assert first == ("interrupted", "the kernel's out-of-memory killer was at work meanwhile")
    assert second[0] == "oom"
    assert "was killed by signal 9 (SIGKILL" in second[1]
    assert "; twice, the kernel's" in second[1]


@pytest.mark.slow
def test_a_search_tries_some_cases_and_races_the_best(place: Place) -> None:
    pytest.importorskip("optuna")
    words = ["axes.params.speed=[1,2,4,8,16]", "search=random", "search_trials=3", "finalists=1", "loss_tolerance=null"]
    assert place.sweep(*words) == 0
    rounds = [(row["round"], row["status"]) for row in ledger_rows(place)]
    assert rounds[:3] == [(1, "ok")] * 3
    assert {number for number, _ in rounds[3:]} == {2}
    num_trials = len(rounds)
    assert place.sweep(*words) == 0
    assert len(ledger_rows(place)) == num_trials


@pytest.mark.slow
def test_stop_on_error_ends_the_sweep_and_a_failed_trial_is_tried_again_when_asked(place: Place) -> None:
    place.write(lambda text: text.replace("params.speed: [1, 4]", "params.how: [fails]"))
    assert place.sweep("stop_on_error=true") == 4
    assert read(place)["state"] == "failed"
    assert place.sweep() == 4
    assert len(ledger_rows(place)) == 1
    assert place.sweep("--retry-failed") == 4
    assert [row["status"] for row in ledger_rows(place)] == ["superseded", "failed"]


def test_a_directory_of_something_else_is_refused(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.out.mkdir()
    (place.out / "thesis.tex").touch()
    assert place.sweep() == 2
    assert "thesis.tex" in capsys.readouterr().err


@pytest.mark.slow
def test_a_directory_that_becomes_read_only_is_a_clear_error(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place.sweep() == 0

    def refuse(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("paceline.sweep.tables.write_text", refuse)
    assert place.sweep("axes.params.speed=[1,4,64]") == 4
    assert "the disk is full" in capsys.readouterr().err
    monkeypatch.undo()
    os.chdir(place.path)
    assert [row["status"] for row in ledger_rows(place)][:2] == ["ok", "ok"]
