from __future__ import annotations

from collections.abc import Callable

import pytest

from paceline.errors import ConfigError
from paceline.playbook.condition import check_condition, holds, read_facts
from paceline.playbook.playbook import Playbook, load_playbook
from tests.playbook.test_sizes import BOOK

Written = Callable[..., Playbook]


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ("world_sise > 1", "`world_sise > 1` asks for world_sise, which no recipe has; did you mean world_size?"),
        (
            "model.sprase == null",
            "`model.sprase == null` asks for model.sprase, which no recipe has; did you mean model.sparse?",
        ),
        ("zzz.qqq == 1", "`zzz.qqq == 1` asks for zzz.qqq, which no recipe has"),
        (
            "sizes.long > 3",
            "`sizes.long > 3` asks for sizes.long, and `when` is asked before sizes and limits are chosen",
        ),
        ("limits.pace > 3", "`limits.pace > 3` asks for limits.pace, and `when` is asked before"),
        ("world_size >", "a name or a value was expected"),
    ],
)
def test_a_mistyped_key_is_refused(condition: str, says: str) -> None:
    (problem,) = check_condition(condition, "mine.yaml:3")
    assert problem.what.startswith(says)
    assert problem.where == "mine.yaml:3"
    assert problem.do


@pytest.mark.parametrize(
    "condition",
    [
        'recipe == "nsa" and model.sparse != "never"',  # of one recipe alone
        "world_size > 1 and num_gpus == 0 and threads > 1",
        'launch.env.NCCL_DEBUG == "INFO" or command.params.batch > 2',
    ],
)
def test_what_any_recipe_has_may_be_asked_for(condition: str) -> None:
    assert check_condition(condition, "here") == []


def test_a_key_of_another_recipe_is_null_and_a_word_of_a_mapping_is_found() -> None:
    facts = read_facts("sasrec", ["launch.gpus=[]", "launch.env.MINE=x"])
    assert holds("model.sparse == null", facts, "here")
    assert holds('launch.env.MINE == "x" and launch.env.OTHER == null', facts, "here")


def test_it_is_said_when_the_playbook_is_loaded(written: Written) -> None:
    with pytest.raises(ConfigError) as caught:
        written(BOOK.replace("when: world_size > 1", "when: world_sizes > 1"))
    assert "did you mean world_size?" in caught.value.problems[0].what
    assert "book.yaml" in caught.value.problems[0].where
    with pytest.raises(ConfigError, match="did you mean num_gpus"):
        written(BOOK.replace("when: num_gpus > 0", "when: num_gpu > 0"))
    with pytest.raises(ConfigError, match="did you mean world_size") as typed:
        load_playbook("validate", ["buckets.when=world_sze > 1", "launch.gpus=[]"])
    assert "override 'buckets.when=world_sze > 1'" in typed.value.problems[0].where
