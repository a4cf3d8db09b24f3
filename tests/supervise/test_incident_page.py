from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.diagnose.finding import Finding
from paceline.supervise.incident_page import render_page

STACKS = "paceline diagnose RUN --stacks shows where each rank is"
GO_ON = "kill -CONT 4711 lets it go on; whoever sent SIGSTOP can say why"


def render(**changes: Any) -> str:
    record: dict[str, Any] = {
        "id": "0001",
        "attempt": 1,
        "noticed": 100.0,
        "times": 1,
        "returned": None,
        "happened": 95.0,
        "finding": Finding("stall", "it stands still", "look", severity="critical").to_record(),
        "others": [],
        "ranks": [],
        "stacks": {"taken_s": 0.4, "clusters": [], "missing": {}},
        "policy": "halt",
        "action": "none",
        "ended": None,
    }
    return render_page(record | changes, Path("/runs/a b"), "incidents/0001-stall")


def page(do: str, action: str = "none", ended: float | None = None, taken_s: float | None = 0.4) -> str:
    finding = Finding("stall", "it stands still", do, severity="critical").to_record()
    stacks = {"taken_s": taken_s, "clusters": [], "missing": {}}
    text = render(finding=finding, stacks=stacks, action=action, ended=ended)
    return next(line.removeprefix("**Do**: ") for line in text.splitlines() if line.startswith("**Do**"))


@pytest.mark.parametrize(
    ("told", "advice"),
    [
        (page(STACKS, taken_s=None), "paceline diagnose '/runs/a b' --stacks shows where each rank is"),
        (page(STACKS), "look at the stacks below, the odd one first"),
        (page(STACKS, "killed"), "look at the stacks below, the odd one first; then start it again"),
        (page(STACKS, "restarted", taken_s=None), "look at what every rank was doing"),
        (page(GO_ON), GO_ON),
        (page(GO_ON, "killed"), "whoever sent SIGSTOP can say why; then start it again"),
        (page(GO_ON, ended=120.0), "whoever sent SIGSTOP can say why"),
        (page("paceline triage RUN tries them"), "paceline triage '/runs/a b' tries them"),
    ],
)
def test_the_advice_of_an_incident_can_be_followed(told: str, advice: str) -> None:
    assert told == advice


def test_an_incident_that_came_back_says_how_often_and_since_when() -> None:
    text = render(times=3, returned=4000.0, happened=3990.0)
    assert (
        "noticed 1970-01-01 01:06:40 UTC, 10.0 s after it began; "
        "it came and went: this is time 3, the first was 1970-01-01 00:01:40 UTC." in text
    )
