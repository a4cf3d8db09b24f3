"""Files that ship are found by name, before a file of the same name; what is not there is said with what is."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.config.shipped import find_shipped, list_shipped
from paceline.errors import UsageError


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_name_comes_before_a_file_and_a_path_is_the_users_own() -> None:
    Path("csa-sweep").touch()
    Path("mine.yaml").touch()
    path, shown = find_shipped("plans", "plan", "csa-sweep")
    assert path.is_file()
    assert path.is_absolute()
    assert shown == "configs/plans/csa-sweep.yaml"
    assert find_shipped("plans", "plan", "mine.yaml") == (Path("mine.yaml"), "mine.yaml")
    assert find_shipped("plans", "plan", "./csa-sweep") == (Path("./csa-sweep"), "./csa-sweep")


@pytest.mark.parametrize(("target", "do"), [("csa-swep", "use csa-sweep, or another of "), ("zzz", "name one of ")])
def test_a_wrong_name_lists_what_there_is_and_the_nearest(target: str, do: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_shipped("plans", "plan", target)
    (problem,) = caught.value.problems
    assert problem.what == f"there is no plan {target!r}"
    assert problem.do == f"{do}{', '.join(list_shipped('plans'))}, or a YAML file"


def test_a_file_nearby_is_the_nearest() -> None:
    Path("buckets.yaml").touch()
    with pytest.raises(UsageError) as caught:
        find_shipped("plans", "plan", "bucket.yaml")
    assert caught.value.problems[0].do.startswith("use buckets.yaml, or another of ")


def test_a_directory_is_no_plan() -> None:
    Path("runs").mkdir()
    with pytest.raises(UsageError, match="there is no plan 'runs'"):
        find_shipped("plans", "plan", "runs")
