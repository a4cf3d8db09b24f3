import json

import pytest

from paceline.config.fingerprint import differing, identity_of, may_fork_change, numerics_of
from paceline.config.sections import IDENTITY, RunConfig, Section, key
from paceline.recipes.registry import find_recipe


def config(**changes) -> RunConfig:
    return RunConfig(recipe="x", **changes)


def test_identity_changes_with_identity_keys_only():
    base = identity_of(config(), "d")["fingerprint"]
    assert identity_of(config(run={"seed": 1}), "d")["fingerprint"] != base
    assert identity_of(config(train={"global_batch": 64}), "d")["fingerprint"] != base
    assert identity_of(config(), "other data")["fingerprint"] != base
    assert identity_of(config(train={"micro_batch": 4}), "d")["fingerprint"] == base
    assert identity_of(config(precision={"mode": "bf16"}), "d")["fingerprint"] == base
    assert identity_of(config(launch={"nproc": 4}, run={"name": "n", "out": "o"}), "d")["fingerprint"] == base
    assert identity_of(config(train={"max_steps": 9}), "d")["fingerprint"] == base


def test_identity_is_plain_json_and_stable():
    identity = identity_of(config(), "d")
    assert json.loads(json.dumps(identity)) == identity
    assert len(identity["fingerprint"]) == 64
    assert list(identity["values"]) == sorted(identity["values"])
    assert identity["values"]["data.digest"] == "d"
    assert identity == identity_of(config(), "d")


def test_a_run_from_before_there_was_an_average_is_still_itself():
    assert "train.optimizer.ema" not in identity_of(config(), "d")["values"]
    averaged = identity_of(config(train={"optimizer": {"ema": 0.99}}), "d")
    assert averaged["values"]["train.optimizer.ema"] == 0.99
    assert averaged["fingerprint"] != identity_of(config(), "d")["fingerprint"]


def test_a_key_counts_whatever_it_is_called():
    class WithPath(Section):
        path: str = key("", "Where the initial weights lie.", IDENTITY)

    class Schema(RunConfig):
        model: WithPath = key(WithPath(), "Model.")

    here = identity_of(Schema(recipe="x", model={"path": "here"}), "d")
    there = identity_of(Schema(recipe="x", model={"path": "there"}), "d")
    assert here["fingerprint"] != there["fingerprint"]


def test_data_counts_by_its_content():
    schema = find_recipe("sasrec").schema
    here, there = (identity_of(schema(recipe="sasrec", data={"path": path}), "d") for path in ("here", "there"))
    assert here == there


def test_the_identity_of_a_recipe_covers_model_and_loss():
    schema = find_recipe("sasrec").schema
    values = identity_of(schema(recipe="sasrec"), "d")["values"]
    assert {name.partition(".")[0] for name in values} >= {"recipe", "run", "data", "train", "model", "loss"}


def test_numerics_and_differences():
    numerics = numerics_of(RunConfig)
    assert "precision.mode" in numerics
    assert "run.seed" not in numerics
    assert differing({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}) == [("b", 2, 3), ("c", None, 4)]


def test_first_weights_count_only_where_they_are_given():
    base, other = identity_of(config(), "d"), identity_of(config(), "d", "w1")
    assert "init.weights" not in base["values"]
    assert other["values"]["init.weights"] == "w1"
    assert len({base["fingerprint"], other["fingerprint"], identity_of(config(), "d", "w2")["fingerprint"]}) == 3


@pytest.mark.parametrize(
    ("key", "may_change"),
    [
        ("train.optimizer.lr", True),
        ("train.optimizer.no_decay", True),
        ("train.optimizer.name", False),
        ("train.schedule.kind", True),
        ("train.lr_scaling.rule", True),
        ("train.clip_norm", True),
        ("loss.negatives", True),
        ("init.weights", True),
        ("recipe", False),
        ("model.width", False),
        ("data.digest", False),
        ("run.seed", False),
        ("train.global_batch", False),
        ("train.max_steps_per_epoch", False),
        ("some.key_of_tomorrow", False),
    ],
)
def test_what_a_fork_may_change(key, may_change):
    assert may_fork_change(key) == may_change


def test_every_identity_key_of_a_recipe_that_a_fork_may_change_is_about_how_training_goes_on():
    values = identity_of(find_recipe("sasrec").schema(recipe="sasrec"), "d")["values"]
    assert {key.split(".")[0] for key in values if may_fork_change(key)} == {"train", "loss"}
