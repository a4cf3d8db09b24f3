from __future__ import annotations

from collections.abc import Callable

import pytest

from paceline.errors import ConfigError
from paceline.playbook.playbook import Playbook
from paceline.playbook.selection import select
from paceline.playbook.sizes import compute

Written = Callable[..., Playbook]
BOOK = """
config: sasrec
set: {launch.gpus: []}
sizes:
  - {when: num_gpus > 0, steps: 300}
  - {when: world_size == 2, steps: 40}
  - {steps: 20}
limits: {pace: null}
phases:
  A: {kind: train, set: {train.epochs: null, train.max_steps: = steps, train.global_batch: = train.global_batch / world_size}}
  B: {kind: sweep, axes: {model.blocks: [1, 2]}, steps: = steps * 2}
  C:
    kind: train
    required: false
    when: world_size > 1 and data.manifest == null
    otherwise: one rank is alone
    set: {launch.nproc: 1}
  D: {kind: check, required: false, of: C}
"""


def test_the_first_set_that_holds_and_what_is_typed_before_it(written: Written) -> None:
    assert written(BOOK).settings("A", {})["train.max_steps"] == 20
    two = written(BOOK, "launch.nproc=2", "train.global_batch=65")
    assert two.settings("A", {})["train.max_steps"] == 40
    # What was typed for all comes before what the file says; the formula's whole number is what it was without.
    assert two.settings("A", {})["train.global_batch"] == 65
    assert written(BOOK, "launch.nproc=2").settings("A", {})["train.global_batch"] == 32
    assert two.phases["B"].model_dump()["plan"]["steps"] == 80
    assert written(BOOK, "sizes.steps=7").settings("A", {})["train.max_steps"] == 7


@pytest.mark.parametrize(("formula", "value"), [("= a", 1.5), ("= a * 2", 3), ("= b / 2", 3), ("= a / 3", 0.5)])
def test_only_what_dividing_left_is_dropped(formula: str, value: float) -> None:
    """A threshold of 1.5 stays one."""
    found = compute(formula, {"a": 1.5, "b": 7}, "here")
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("sizes.step=7", "there is no size step; did you mean steps?"),
        ("sizes.steps=many", "sizes.steps=many is not a number"),
        ("limits.pase=7", "there is no threshold limits.pase; did you mean limits.pace?"),
        ("limits.pace=fast", "limits.pace=fast is not a number"),
        ("config=nothing", "'nothing' is neither a recipe nor a configuration file"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(written: Written, typed: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        written(BOOK, typed)
    assert [problem.what for problem in caught.value.problems] == [says]


def test_a_formula_over_a_name_that_is_not_there(written: Written) -> None:
    with pytest.raises(ConfigError, match="there is no stepps here") as caught:
        written(BOOK.replace("= steps * 2", "= stepps * 2"))
    assert "book.yaml" in caught.value.problems[0].where


def test_a_condition_asks_what_was_configured_not_what_the_phase_makes_of_it(written: Written) -> None:
    assert select(written(BOOK, "launch.nproc=2")).skipped == {}
    alone = select(written(BOOK)).skipped
    assert alone == {"C": "one rank is alone", "D": "it looks at C, which is skipped: one rank is alone"}


def test_what_is_not_wanted_is_skipped_with_that_reason(written: Written) -> None:
    book = written(BOOK, "launch.nproc=2")
    skipped = select(book, skip="B,C").skipped
    assert skipped["B"] == "not wanted (--skip B,C)"
    assert skipped["D"] == "it looks at C, which is skipped: not wanted (--skip B,C)"
    # What another start may have left is no reason to skip.
    assert select(book, phases="D").names == ("D",)
