"""A playbook around somebody's own script: screened by its parameters, then run with the winner's; real commands, without torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from paceline.cli.main import run_command
from paceline.telemetry.reader import read_run

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys, time
for step in range(1, 1000):
    time.sleep(0.001)
    print(f"iter {step} seen {step * int(sys.argv[1])} loss {1 / step} score 0.5", flush=True)
"""
CONFIG = r"""
recipe: command
command:
  argv: [PYTHON, x.py, "{params.batch}", "{params.name}"]
  params: {batch: 1, name: a}
  metrics: {step: 'iter (\d+)', loss: 'loss (\S+)', samples: 'seen (\d+)', score: 'score (\S+)'}
  stop_grace_s: 0.5
train: {max_steps: 40}
"""
BOOK = """
config: mine.yaml
set: {params.name: b}
phases:
  S:
    kind: sweep
    axes: {params.batch: [1, 50]}
    steps: 30
    warmup_steps: 10
    window: 10
    repeats: 1
    racing: false
    loss_tolerance: null
    gate: [failures == 0]
  T: {kind: train, use: S.best, gate: [validation.score > 0.1]}
"""


@pytest.mark.timeout(120)
def test_a_script_is_screened_and_then_run_with_the_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    Path("x.py").write_text(SCRIPT)
    Path("mine.yaml").write_text(CONFIG.replace("PYTHON", sys.executable))
    Path("book.yaml").write_text(BOOK)
    assert run_command(["play", "book.yaml", "T.gate=validation.skore > 0.1", "--out", "o"]) == 2
    assert "write validation.score" in capsys.readouterr().err
    assert run_command(["play", "book.yaml", "--out", "o"]) == 0
    assert json.loads(Path("o/S/sweep/sweep.json").read_text())["best"] == "batch=50"
    (plan,) = read_run(Path("o/T/run")).events_of("plan")
    assert plan["argv"][-2:] == ["50", "b"]


@pytest.mark.timeout(120)
def test_what_a_script_writes_to_a_file_that_it_was_given_is_not_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    note = "open(sys.argv[2].partition('=')[2], 'a').write('begun')\n"
    Path("x.py").write_text(SCRIPT.replace("import sys, time\n", f"import sys, time, model\n{note}"))
    Path("model.py").write_text("")
    config = CONFIG.replace("{params.name}", "--log={params.name}").replace("name: a", "name: out.log")
    Path("mine.yaml").write_text(config.replace("PYTHON", sys.executable))
    Path("book.yaml").write_text("config: mine.yaml\nbound: true\nphases:\n  T: {kind: train}\n")
    for is_done in (False, True):
        assert run_command(["play", "book.yaml", "--out", "o"]) == 0
        assert Path("out.log").read_text() == "begun"
        assert ("T: done already" in capsys.readouterr().out) is is_done
    # What it imports is its code.
    Path("model.py").write_text("x = 1\n")
    assert run_command(["play", "book.yaml", "--out", "o"]) == 0
    assert "done again, because what was begun is of another machine or other code" in capsys.readouterr().out
    assert Path("out.log").read_text() == "begunbegun"
