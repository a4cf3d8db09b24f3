from __future__ import annotations

import pytest

from paceline.config.contradictions import Facts
from paceline.errors import ConfigError, DataError
from paceline.recipes.job import load_job
from paceline.recipes.tenrec.columns import ACTIONS, HISTORY
from paceline.recipes.tenrec.config import Model
from paceline.recipes.tenrec.flops import ranker_flops

HERE = Facts(world_size=1, num_gpus=0)


@pytest.mark.parametrize(
    ("name", "overrides", "what"),
    [
        ("tenrec", ["model.heads=5"], "cannot be shared among model.heads=5"),
        ("tenrec", ["model.width=40"], "model.width=40 is no multiple of 16"),
        ("tenrec", ["model.feed_forward=100"], "model.feed_forward=100 is no multiple of 16"),
        ("tenrec", ["evaluate.top_k=[5,5]"], "names a cut-off twice"),
        ("tenrec", ["evaluate.retrieval=runs/none", "evaluate.retrieved=9"], "cannot fill evaluate.top_k=[10]"),
        ("tenrec", ["data.recorded=0"], "is less than one row"),
        ("tenrec", ["data.negatives=1", "data.recorded=0.5"], "is less than one row"),
        ("tenrec-retrieval", ["train.global_batch=1"], "leaves nothing to tell a clicked item from"),
    ],
)
def test_contradictions(name: str, overrides: list[str], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_job(name, overrides).check(HERE)
    (problem,) = caught.value.problems
    assert what in problem.what
    assert problem.do.startswith("set ")


@pytest.mark.parametrize(
    "overrides",
    [
        ["evaluate.top_k=[-1]"],
        ["data.negatives=0"],
        ["evaluate.retrieved=0"],
        ["data.seed=9999999999999999999"],
        ["data.rows=4000000000"],
    ],
)
def test_numbers_that_mean_nothing(overrides: list[str]) -> None:
    with pytest.raises(ConfigError, match=overrides[0].partition("=")[0]):
        load_job("tenrec", overrides)


@pytest.mark.parametrize("name", ["tenrec", "tenrec-retrieval", "tenrec-full"])
def test_what_ships_is_in_order(name: str) -> None:
    job = load_job(name)
    job.check(HERE)
    assert not [key for key, _ in job.idle(job.given)]


def test_the_full_shape() -> None:
    config = load_job("tenrec-full").config
    assert (config.model.layers, config.model.width, config.data.negatives, config.loss.smoothing) == (
        12,
        512,
        127,
        0.1,
    )


def test_keys_of_the_other_model_are_named() -> None:
    job = load_job("tenrec", ["loss.num_sampled=9", "data.max_users=5", "attention.impl=sdpa"])
    assert {key for key, _ in job.idle(job.given)} == {"loss.num_sampled", "data.max_users", "attention.impl"}
    job = load_job("tenrec-retrieval", ["model.mixer=fastformer", "data.negatives=3"])
    assert {key for key, _ in job.idle(job.given)} == {"model.mixer", "data.negatives"}


def test_generated_data_is_known_by_what_it_follows_from() -> None:
    identities = {
        load_job("tenrec", [word]).recipe.identify_data(load_job("tenrec", [word]).config)
        for word in ("data.users=3001", "data.items=999", "data.rows=5000", "data.seed=1", "data.negatives=3")
    }
    assert len(identities) == 5
    with pytest.raises(DataError, match="does not exist"):
        load_job("tenrec", ["data.path=nowhere"]).identity()


def test_flops_are_those_of_the_products() -> None:
    """Of one layer and one candidate, counted by hand: 12 entries, of which the candidate looks at all, and eleven at eleven."""
    model, entries = Model(width=16, layers=1, heads=1), HISTORY + 2
    linear = 2 * 16 * (3 * 16 + 16 + 2 * 64)
    looks = 4 * 16 * ((HISTORY + 1) ** 2 + entries)
    assert ranker_flops(model, 1) == entries * linear + looks + 2 * 16 * (len(ACTIONS) + 1)
