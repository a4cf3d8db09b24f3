"""Errors say what, where and what to do, keep their exit code, and survive the way from a worker to its launcher."""

from __future__ import annotations

import json
import pickle
import traceback

import pytest

from paceline import errors
from paceline.errors import ConfigError, PacelineError, Problem, error_from_record

EXIT_CODES = {
    "PacelineError": 4,
    "UsageError": 2,
    "ConfigError": 2,
    "DataError": 2,
    "CheckpointError": 2,
    "OccupiedError": 2,
    "RendezvousError": 2,
    "PreflightError": 3,
    "HaltedError": 5,
    "GateError": 6,
    "StorageError": 4,
    "OutOfMemoryError": 4,
    "NonFiniteError": 4,
    "DesyncError": 4,
    "RankLostError": 4,
    "LoaderError": 4,
    "Interrupted": 130,
}
KINDS = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, PacelineError)]


def test_every_error_is_in_the_table() -> None:
    assert {kind.__name__: kind.exit_code for kind in KINDS} == EXIT_CODES


def test_the_docstring_draws_the_tree_as_it_is() -> None:
    lines = [line.strip("│├└─ ").split() for line in (errors.__doc__ or "").splitlines()]
    drawn = {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}
    assert drawn == EXIT_CODES


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_record_becomes_the_same_error_again(kind: type[PacelineError]) -> None:
    first = kind(problems=[Problem("a", "b", "c"), Problem("d")])
    again = error_from_record(json.loads(json.dumps(first.to_record() | {"rank": 3})))
    assert type(again) is kind
    assert (again.problems, again.exit_code) == (first.problems, first.exit_code)


def test_an_unknown_name_becomes_the_base_class() -> None:
    again = error_from_record({"error": "FromTheFuture", "problems": [{"what": "a", "where": "", "do": ""}]})
    assert type(again) is PacelineError
    assert again.problems[0].what == "a"


def test_one_problem_reads_as_what_where_do() -> None:
    assert ConfigError("train.epoch is unknown", "a.yaml:3", "write train.epochs").render() == (
        "ConfigError: train.epoch is unknown\n  where: a.yaml:3\n  do:    write train.epochs"
    )


def test_a_problem_without_a_place_has_no_empty_line() -> None:
    assert ConfigError("wrong").render() == "ConfigError: wrong"


def test_several_problems_are_counted_and_all_shown() -> None:
    text = ConfigError(problems=[Problem("one", "x"), Problem("two", "", "do it"), Problem("three")]).render()
    assert text.splitlines() == [
        "3 problems:",
        "ConfigError: one",
        "  where: x",
        "ConfigError: two",
        "  do:    do it",
        "ConfigError: three",
    ]


def test_a_traceback_says_everything_and_names_the_class_once() -> None:
    one, two = Problem("one", "x", "do it"), Problem("two")
    lines = "".join(traceback.format_exception_only(ConfigError(problems=[one]))).splitlines()
    assert lines == ["paceline.errors.ConfigError: one", "  where: x", "  do:    do it"]
    assert str(ConfigError(problems=[one, two])) == "2 problems:\none\n  where: x\n  do:    do it\ntwo"
    again = pickle.loads(pickle.dumps(ConfigError("one", "x", "do it")))
    assert again.problems == (one,), "as a process of a pool hands it on"
