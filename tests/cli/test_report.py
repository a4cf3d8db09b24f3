from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.cli.main import run_command
from paceline.files import Lock
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.reader import read_run
from tests.launch.saved import save_checkpoint
from tests.reports.plays import build_play, save_play
from tests.reports.runs import copy_example
from tests.reports.sweeps import build_sweep, save_sweep
from tests.saved_runs import content_of


def report(root: Path, *arguments: str) -> tuple[str, str]:
    """The page and the Markdown."""
    assert run_command(["report", str(root), *arguments]) == 0
    layout = RunLayout(root)
    return layout.report_page.read_text(), layout.report_text.read_text()


def test_it_lies_in_the_run_whose_other_files_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout = copy_example(tmp_path / "run")
    before = content_of(layout.root)
    html, markdown = report(layout.root)
    shown = capsys.readouterr().out
    assert f"report: {layout.report_page} (" in shown
    assert f"report: {layout.report_text} (" in shown
    for text in (html, markdown):
        for expected in ("finished at step 18: length", "metrics.csv, step 18", "0.3149", "data.users", "e017e1270028"):
            assert expected in text
    assert html.count("<figure") == 12
    report(layout.root)
    after = content_of(layout.root)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"report.html", "report.md"}
    assert read_run(layout.root).run.state == "finished"


def test_it_lies_where_it_is_wanted(tmp_path: Path) -> None:
    layout = copy_example(tmp_path / "run")
    before = content_of(layout.root)
    assert run_command(["report", str(layout.root), "--out", str(tmp_path / "a" / "b")]) == 0
    assert sorted(os.listdir(tmp_path / "a" / "b")) == ["report.html", "report.md"]
    assert content_of(layout.root) == before


def test_for_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout = copy_example(tmp_path / "run")
    assert run_command(["report", str(layout.root), "--json", "--window", "6"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["throughput"]["num_steps"] == 6
    assert found["throughput"]["from"] == str(layout.metrics)
    assert found["throughput"]["rate"]["mean"] > 0
    assert {"result": "loss", "value": "3.2464", "from": "metrics.csv, step 18"} in found["results"]
    assert [Path(path).name for path in found["files"]] == ["report.html", "report.md"]


def test_it_finds_out_what_it_was_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = save_sweep(tmp_path / "sweep", build_sweep({"parallel.bucket_mb": [25, 50]}, 2))
    play = save_play(tmp_path / "play", build_play())
    for root, expected in ((sweep, "bucket_mb=50 wins"), (play, "P2: train")):
        before = content_of(root)
        html, markdown = report(root)
        assert expected in html
        assert expected in markdown
        after = content_of(root)
        assert set(after) - set(before) == {"report.html", "report.md"}
        assert {name: after[name] for name in before} == before
    capsys.readouterr()
    assert run_command(["report", str(sweep), "--json", "--out", str(tmp_path / "elsewhere")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["winner"], found["state"], found["trials"]) == ("bucket_mb=50", "finished", 4)
    assert [case["verdict"] for case in found["cases"]] == ["winner", "slower"]
    assert "../sweep/trials/0001-" in (tmp_path / "elsewhere" / "report.html").read_text()
    assert run_command(["report", str(play), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [phase["state"] for phase in found["phases"]] == ["done", "done", "gate not met", "waiting"]


def remove(*names: str) -> Callable[[RunLayout], None]:
    def mutate(layout: RunLayout) -> None:
        for name in names:
            (layout.root / name).unlink()

    return mutate


def write(name: str, text: str) -> Callable[[RunLayout], None]:
    return lambda layout: (layout.root / name).write_text(text) and None


def change(name: str, edit: Callable[[bytes], bytes]) -> Callable[[RunLayout], None]:
    return lambda layout: (layout.root / name).write_bytes(edit((layout.root / name).read_bytes())) and None


def without_last_lines(num_lines: int) -> Callable[[bytes], bytes]:
    return lambda content: b"".join(content.splitlines(keepends=True)[:-num_lines])


def strip_attempts(layout: RunLayout) -> None:
    content = json.loads(layout.run.read_text()) | {"attempts": [], "state": "running"}
    layout.run.write_text(json.dumps(content))


def lose_numbers(layout: RunLayout) -> None:
    header, *rows = layout.metrics.read_text().splitlines()
    place = header.split(",").index("loss")
    cells = [row.split(",") for row in rows]
    for row in cells:
        row[place] = "nan"
    layout.metrics.write_text("\n".join([header, *map(",".join, cells)]) + "\n")


def other_version(layout: RunLayout) -> None:
    content = json.loads(layout.run.read_text()) | {"paceline": "0.0.9", "unheard_of": [1]}
    layout.run.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("mutate", "says"),
    [
        pytest.param(remove("metrics.csv", "validation.csv", "events.jsonl"), "there is no metrics.csv", id="empty"),
        pytest.param(remove("config.yaml", "origins.json", "env.json"), "there is no origins.json", id="bare"),
        pytest.param(remove("origins.json"), "where they came from is not recorded", id="no origins"),
        pytest.param(write("origins.json", '{"a":'), "origins.json is damaged", id="torn origins"),
        pytest.param(write("env.json", "[1]"), "env.json is damaged", id="another env"),
        pytest.param(write("config.yaml", "a: [1\n"), "no configuration that could be read", id="torn config"),
        pytest.param(strip_attempts, "No attempt is recorded", id="no attempts"),
        pytest.param(lose_numbers, "not finite (nan or inf)", id="nan"),
        pytest.param(other_version, "0.0.9 (this report: ", id="another version"),
        pytest.param(write("metrics.csv", "step,loss\n1,2.5\n"), "metrics.csv has no rows yet", id="foreign columns"),
        pytest.param(write("metrics.csv", "attempt,step,loss\n1,1,2.5\n1,2,\n"), "No window of steps with a rate", id="few columns"),
        pytest.param(write("metrics.csv", "attempt,step,loss,lr\n2,1,x,true\n"), "No column has a value", id="words"),
        pytest.param(write("validation.csv", "attempt,step,accuracy\n2,1,0.5\n"), "accuracy, evaluation", id="no split"),
        pytest.param(
            write("events.jsonl", '{}\n{"kind":"plan"}\n{"kind":"evaluation","attempt":1,"step":1,"split":"a","metrics":{"x":null}}\n'
                  '{"kind":"plan","attempt":2,"start_step":null,"objective":"x","unit":7}\n{"kind":"failure","problems":["x"]}\n{"kind":"baseline"}\n{"kind":"choice"}\n'),
            "7 events",
            id="strange events",
        ),
        pytest.param(change("metrics.csv", lambda old: old[:-40]), "metrics.csv ends at step 16, and run.json says step 18", id="cut metrics"),
        pytest.param(change("metrics.csv", lambda old: old[:-40]), "1 line of metrics.csv is damaged (line 7) and left out", id="torn metrics"),
        pytest.param(change("metrics.csv", without_last_lines(2)), "metrics.csv ends at step 12, and run.json says step 18", id="short metrics"),
        pytest.param(change("metrics.csv", lambda old: old.replace(b"\n2,8,", b"\n2,8\r,")), "(line 4) and left out", id="stray return"),
        pytest.param(change("metrics.csv", lambda old: old.replace(b"\n2,8,", b"\n2,\xff\x00,")), "(line 4) and left out", id="random bytes"),
        pytest.param(change("metrics.csv", lambda old: old.splitlines(keepends=True)[0]), "metrics.csv has no rows that count", id="header only"),
        pytest.param(write("validation.csv", ""), "validation.csv is empty", id="empty validation"),
        pytest.param(remove("validation.csv"), "there is no validation.csv", id="no validation"),
        pytest.param(change("validation.csv", without_last_lines(2)), "validation.csv lacks 2 evaluations that events.jsonl tells of, the first of step 18", id="short validation"),
        pytest.param(write("events.jsonl", ""), "events.jsonl is empty", id="empty events"),
        pytest.param(change("events.jsonl", without_last_lines(1)), "events.jsonl is cut: the end of attempt 2 is not in it", id="short events"),
        pytest.param(change("events.jsonl", lambda old: old.replace(b'"kind"', b'"ki', 1)), "1 line of events.jsonl is damaged (line 1)", id="torn events"),
        pytest.param(change("config.yaml", without_last_lines(1)), "config.yaml is cut: it lacks 1 key, such as loss.num_negatives", id="short config"),
        pytest.param(change("config.yaml", lambda old: old[:-3]), "config.yaml is cut in its last line", id="cut config"),
        pytest.param(write("config.yaml", "a: [1\n"), "config.yaml is damaged", id="damaged config"),
        pytest.param(write("config.yaml", ""), "config.yaml is empty", id="empty config"),
        pytest.param(change("run.json", lambda old: old.replace(b'"runs/example"', b'"runs/caf\\udce9"')), "caf\\udce9", id="not UTF-8"),
        pytest.param(write("heartbeat/rank_00001.jsonl", '{"rank": 1, "step_ms": 3, "gpu": 1, "time": "x"}\n{"to'), "not in the last one", id="strange beats"),
    ],
)  # fmt: skip
def test_whatever_is_missing_or_strange_is_said(tmp_path: Path, mutate: Callable[[RunLayout], None], says: str) -> None:
    layout = copy_example(tmp_path / "run")
    mutate(layout)
    html, markdown = report(layout.root)
    assert says in html
    if "(nan" not in says:
        assert says in markdown


def test_a_whole_run_is_told_of_no_damage_and_one_without_evaluations_of_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = copy_example(tmp_path / "run")
    assert run_command(["report", str(layout.root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gaps"] == []
    layout.validation.unlink()
    lines = layout.events.read_text().splitlines(keepends=True)
    layout.events.write_text("".join(line for line in lines if '"evaluation"' not in line))
    html, _ = report(layout.root)
    assert "No evaluation is recorded." in html
    assert "validation.csv" not in html


def test_a_damaged_checkpoint_is_named_and_the_others_are_listed(tmp_path: Path) -> None:
    layout = copy_example(tmp_path / "run")
    save_checkpoint(layout.root, 9)
    save_checkpoint(layout.root, 18)
    (layout.checkpoints / "latest").symlink_to("step_00000009")
    (layout.checkpoints / "step_00000018" / "manifest.json").write_text("{")
    _, markdown = report(layout.root)
    assert "checkpoints/step_00000018: " in markdown
    (row,) = [line for line in markdown.splitlines() if "| checkpoints/step_00000009 |" in line]
    assert row.endswith("| latest |")


def test_a_run_that_is_owned_is_running_and_may_be_claimed_again_afterwards(tmp_path: Path) -> None:
    layout = copy_example(tmp_path / "run")
    content = json.loads(layout.run.read_text())
    content["state"] = content["attempts"][-1]["state"] = "running"
    content["attempts"][-1]["ended"] = None
    layout.run.write_text(json.dumps(content))
    assert "running, as run.json says" in report(layout.root)[0]
    assert not layout.owner_lock.exists()
    owner = Lock(layout.owner_lock)
    assert owner.acquire()
    assert "still running, at step 18 by its heartbeats" in report(layout.root)[0]
    owner.release()
    assert "its launcher was killed" in report(layout.root)[0]
    assert owner.acquire()
    owner.release()


def test_a_sweep_and_a_playbook_that_are_driven_are_running(tmp_path: Path) -> None:
    sweep = save_sweep(tmp_path / "sweep", build_sweep({"parallel.bucket_mb": [25, 50]}, 2) | {"state": "running"})
    play = save_play(tmp_path / "play", build_play() | {"state": "running", "reason": ""})
    for root, name, file in ((sweep, ".driver.lock", "sweep.json"), (play, ".owner.lock", "playbook.json")):
        assert f"running, as {file} says" in report(root)[0]
        assert not (root / name).exists()
        owner = Lock(root / name)
        assert owner.acquire()
        assert "still running" in report(root)[0]
        owner.release()
        assert "interrupted: no process" in report(root)[0]
        assert owner.acquire()
        owner.release()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "not a run directory"),
        (["empty"], "not a run directory"),
        (["damaged"], "run.json is damaged"),
        (["newer"], "written by a newer Paceline"),
        (["run", "--out", "a-file"], "a file stands where a directory is needed"),
        (["run", "--window", "0"], "--window"),
        (["sweep", "--window", "20"], "--window 20 has no effect on a sweep"),
        (["torn-sweep"], "sweep.json is damaged"),
        (["newer-sweep"], "sweep.json was written by a newer Paceline (version 99"),
        (["torn-play"], "playbook.json is damaged"),
        (["newer-play"], "playbook.json was written by a newer Paceline (version 99"),
    ],
)
def test_what_cannot_be_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    copy_example(tmp_path / "run")
    for name, text in (("damaged", "[]"), ("newer", '{"v": 99}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
    for name, file in (("sweep", "sweep.json"), ("play", "playbook.json")):
        for kind, text in ((f"torn-{name}", '{"v": 1,'), (f"newer-{name}", '{"v": 99}'), (name, "{}")):
            (tmp_path / kind).mkdir()
            (tmp_path / kind / file).write_text(text)
    (tmp_path / "empty").mkdir()
    (tmp_path / "a-file").touch()
    assert run_command(["report", *arguments]) == 2
    assert says in capsys.readouterr().err
