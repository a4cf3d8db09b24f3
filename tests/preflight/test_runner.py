"""A check that breaks is a warning, and a report says what follows."""

from __future__ import annotations

import json

from paceline.errors import PreflightError
from paceline.preflight.check import Report, fail, ok, warn
from paceline.preflight.runner import MACHINE, QUICK, run_families
from paceline.preflight.subject import Subject
from tests.preflight.conftest import Build


def broken(subject: Subject) -> list:
    raise RuntimeError("surprise")


def test_a_check_that_breaks_keeps_nobody_from_training(build: Build) -> None:
    report = run_families({"a": broken, "b": lambda subject: [ok("x", "y", size_gib=3)]}, build())
    assert report.status == "warn"
    assert report.error() is None
    assert "RuntimeError: surprise" in report.families["a"][0].found
    record = json.loads(json.dumps(report.to_record()))
    assert [(check["family"], check["name"], check["status"]) for check in record["checks"]] == [
        ("a", "a", "warn"),
        ("b", "x", "ok"),
    ]
    assert record["checks"][1]["values"] == {"size_gib": 3}


def test_every_failure_is_in_the_refusal() -> None:
    report = Report(
        {"a": [fail("x", "broken", "mend it"), warn("y", "slow", "wait")], "b": [fail("z", "torn", "sew")]}, 0
    )
    error = report.error()
    assert isinstance(error, PreflightError)
    assert error.exit_code == 3
    assert [(problem.what, problem.do) for problem in error.problems] == [("x: broken", "mend it"), ("z: torn", "sew")]


def test_the_quick_ones_work_here(build: Build) -> None:
    report = run_families(QUICK, build())
    assert not [check for check in report.checks if "could not be checked" in check.found]
    assert set(MACHINE) < set(QUICK) == set(report.families)
    assert report.status != "fail"
