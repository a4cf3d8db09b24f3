"""A report about a real run: made while it trains without a trace in it, and of what a kill and a resume leave."""

from __future__ import annotations

import os
import signal

import pytest

from paceline.cli.main import run_command
from paceline.telemetry.layout import RunLayout
from tests.integration.conftest import assert_same_bits

STEPS = ("train.max_steps=60", "telemetry.log_every=1", "checkpoint.every_steps=20", "evaluate.every_steps=20")


def report(layout: RunLayout) -> str:
    assert run_command(["report", str(layout.root)]) == 0
    return layout.report_text.read_text()


@pytest.mark.timeout(120)
def test_reports_while_it_trains_is_killed_and_goes_on(start_ranks, run_ranks):
    reference = run_ranks(2, *STEPS, name="reference")
    started = start_ranks(2, *STEPS)
    started.wait_for_step(25)
    layout = RunLayout(started.root)
    assert "still running, at step" in report(layout)
    for pid in started.pids:
        os.kill(pid, signal.SIGKILL)
    started.wait()
    assert "its launcher was killed" in report(layout)

    resumed = start_ranks(2, *STEPS)
    for _ in range(5):
        report(layout)
    run = resumed.wait()
    assert resumed.codes == [0, 0], resumed.text()
    assert_same_bits(run, reference)
    text = report(layout)
    assert "**finished at step 60: length**" in text
    attempts = text[text.index("## Attempts") :].splitlines()[4:6]
    assert "its launcher was killed" in attempts[0]
    (start,) = run.events_of("resume", attempt=2)
    assert f"| {start['step']} | 60 | step_{start['step']:08d} |" in attempts[1]
    assert "| test ndcg_10 |" in text
    assert layout.report_page.read_text().count("another attempt began") > 5
