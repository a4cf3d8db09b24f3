import json

from paceline.config.fingerprint import differing, identity_of, numerics_of
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
