from __future__ import annotations

import argparse
import dataclasses
import json
import math
from pathlib import Path

import pytest
import yaml

from paceline.config.changes import settings_in
from paceline.errors import ConfigError
from paceline.telemetry.sdk.settings import (
    check_may_change,
    differing,
    flatten,
    identify,
    plain_settings,
    read_lines,
    to_yaml,
)


@dataclasses.dataclass
class Model:
    width: int = 64
    kind: str = "on"


CONFIG = {
    "lr": 1e-08,
    "big": 1e300,
    "whole": 1.0,
    "betas": (0.9, 1e-7),
    "model": Model(),
    "names": {"yes": True, "a b": None, "3": "3", "": "", "empty": {}},
    "path": Path("data/x.txt"),
    "text": "a: b # c\n'd' \"é\" 1e-3",
    "odd": [float("inf"), {"x": [1, {}]}, []],
    "tags": {"b", "a"},
}


def test_every_yaml_reads_the_same_values_back() -> None:
    settings = plain_settings(CONFIG)
    text = to_yaml(settings)
    assert yaml.safe_load(text) == settings
    assert settings["model"] == {"width": 64, "kind": "on"}
    assert settings["tags"] == ["a", "b"]
    assert settings["path"] == "data/x.txt"
    ours = settings_in(text)
    assert ours["lr"] == 1e-08
    assert ours["text"] == CONFIG["text"]
    assert math.isnan(yaml.safe_load(to_yaml({"a": math.nan}))["a"])


def test_a_number_that_is_not_finite_equals_itself_and_stays_json() -> None:
    odd = {"a": math.nan, "b": [math.inf, {"c": -math.inf}], "d": 1.5}
    one, two = identify(odd, []), identify({"a": math.nan, "b": [math.inf, {"c": -math.inf}], "d": 1.5}, [])
    assert differing(one["values"], json.loads(json.dumps(two["values"], allow_nan=False))) == []
    assert one["values"] == {"a": ".nan", "b": [".inf", {"c": "-.inf"}], "d": 1.5}
    assert one["fingerprint"] == two["fingerprint"] != identify(odd | {"a": 0.0}, [])["fingerprint"]


def test_what_no_file_can_hold_is_refused_with_its_key() -> None:
    class Wordless:
        def __str__(self) -> str:
            raise ValueError("no")

    itself: dict = {"a": {}}
    itself["a"]["b"] = [itself]
    for wrong, what in (
        ({"model": {"x": "\ud800"}}, "model.x of the configuration has no text that can be written"),
        ({"model": {"\ud800": 1}}, "model of the configuration"),
        ({"x": Wordless()}, "x of the configuration"),
        (itself, "contains itself at 'a.b'"),
    ):
        with pytest.raises(ConfigError, match=what):
            plain_settings(wrong)
    shared = {"x": 1}
    assert plain_settings({"a": shared, "b": [shared]})["b"] == [shared], "twice is not inside itself"


def test_what_python_has_besides_dictionaries() -> None:
    class Other:
        pass

    namespace = argparse.Namespace(lr=0.1, model=argparse.Namespace(width=2), thing=Other())
    settings = plain_settings(namespace)
    assert flatten(settings)["model.width"] == 2
    # The same object at another address is the same setting.
    assert settings["thing"] == plain_settings({"thing": Other()})["thing"]
    assert plain_settings(None) == {"recipe": "sdk"}
    assert plain_settings({"recipe": "cake"}) == {"recipe": "cake"}
    with pytest.raises(ConfigError, match="not list"):
        plain_settings([1])


def test_values_are_found_again_by_their_dotted_keys() -> None:
    lines = read_lines(to_yaml({"a": 1, "b": {"c": 0.5, "d": {"e": "x: y"}, "f": []}, "g": None}))
    assert lines == {"a": "1", "b.c": "0.5", "b.d.e": '"x: y"', "b.f": "[]", "g": "null"}


def test_identity_is_everything_but_what_may_change() -> None:
    one = identify({"recipe": "sdk", "lr": 0.1, "train": {"epochs": 2, "batch": 3}}, ["train.epochs"])
    assert one["values"] == {"lr": 0.1, "recipe": "sdk", "train.batch": 3}
    other = identify({"train": {"batch": 3, "epochs": 9}, "recipe": "sdk", "lr": 0.1}, ["train.epochs"])
    assert one["fingerprint"] == other["fingerprint"] != identify({"lr": 0.2}, [])["fingerprint"]
    assert identify({"train": {"epochs": 2}, "trainer": 1}, ["train"])["values"] == {"trainer": 1}
    assert differing({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}, ["c"]) == [("b", 2, 3)]


def test_a_name_that_may_change_must_exist() -> None:
    check_may_change(["train", "lr", "train.epochs"], {"lr": 1, "train": {"epochs": 2}})
    with pytest.raises(ConfigError) as caught:
        check_may_change(["train.epoch"], {"train": {"epochs": 2}})
    assert caught.value.problems[0].do == "write 'train.epochs'"
    with pytest.raises(ConfigError) as caught:
        check_may_change("abc", {"a": 1, "b": 2, "c": 3})
    assert caught.value.problems[0].do == "write may_change=['abc']"
    for wrong in (5, [5]):
        with pytest.raises(ConfigError, match="5"):
            check_may_change(wrong, {"a": 1})
