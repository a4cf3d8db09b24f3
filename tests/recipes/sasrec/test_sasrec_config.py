import subprocess
import sys

import pytest
from pydantic import ValidationError

from paceline.errors import DataError
from paceline.recipes.sasrec.config import RECIPE, SasrecConfig, check, find_idle, identify_data


def configure(**sections):
    return SasrecConfig.model_validate({"recipe": "sasrec", **sections})


def test_a_sound_configuration_has_no_problems():
    assert check(configure()) == []
    assert RECIPE.schema is SasrecConfig


def test_heads_must_share_the_width():
    (problem,) = check(configure(model={"width": 50, "heads": 4}))
    assert "model.width=50" in problem.what
    assert "50 = 12 × 4 + 2" in problem.what
    assert problem.do == "set model.heads=5, or model.width=52"


def test_all_problems_at_once():
    problems = check(configure(model={"width": 9, "heads": 2}, evaluate={"top_k": [10, 5, 10]}))
    assert len(problems) == 2
    assert problems[1].do == "set evaluate.top_k=[10, 5]"


def test_what_has_no_effect_is_found_where_somebody_gave_it():
    given = {"loss.num_negatives", "data.users", "data.format"}
    assert set(dict(find_idle(configure(loss={"num_negatives": 4}), given))) == {"loss.num_negatives", "data.format"}
    read = configure(loss={"kind": "bce", "num_negatives": 4}, data={"path": "x"})
    assert dict(find_idle(read, given)) == {"data.users": "data.path is given"}
    assert list(find_idle(read, set())) == []


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({}, "model.time_bins"),
        ({}, "model.streams"),
        ({}, "model.temperature"),
        ({}, "loss.negatives"),
        ({}, "loss.calibration"),
        ({}, "evaluate.num_candidates"),
        ({}, "data.num_workers"),
        ({"model": {"time": True}}, "attention.impl"),
        ({"loss": {"kind": "sampled_softmax", "negatives": "in_batch"}}, "loss.shared"),
    ],
)
def test_keys_of_a_choice_that_was_not_made_are_idle(sections, key):
    assert dict(find_idle(configure(**sections), {key}))[key]


def test_the_same_keys_work_where_the_choice_was_made():
    chosen = configure(
        data={"placement": "host"},
        model={"time": True, "mhc": True, "scores": "cosine"},
        loss={"kind": "gbce"},
        evaluate={"candidates": "sampled"},
    )
    given = {"model.time_bins", "model.streams", "model.temperature", "loss.calibration", "evaluate.num_candidates"}
    assert dict(find_idle(chosen, {*given, "data.num_workers"})) == {}


@pytest.mark.parametrize(
    ("sections", "match"),
    [
        ({"loss": {"kind": "bce", "negatives": "popularity"}}, "no correction"),
        ({"evaluate": {"candidates": "sampled", "mask_seen": True}}, "never items that the user had"),
        (
            {"attention": {"impl": "flex", "fallback": "error"}, "model": {"attention_dropout": 0.1}},
            "cannot drop attention weights",
        ),
    ],
)
def test_contradictions_are_refused(sections, match):
    (problem,) = check(configure(**sections))
    assert match in problem.what


@pytest.mark.parametrize(
    "section",
    [
        {"data": {"users": 0}},
        {"data": {"path": ""}},
        {"evaluate": {"top_k": []}},
        {"evaluate": {"top_k": [0]}},
        {"model": {"depth": 2}},
    ],
)
def test_impossible_values_are_refused(section):
    with pytest.raises(ValidationError):
        configure(**section)


def test_generated_data_is_identified_by_what_it_follows_from():
    digest = identify_data(configure())
    assert digest == identify_data(configure(run={"seed": 7}, data={"max_length": 10}))
    for other in ({"users": 2001}, {"items": 999}, {"events_per_user": 51}, {"seed": 1}):
        assert identify_data(configure(data=other)) != digest


def test_identifying_a_missing_file_is_a_data_error(tmp_path):
    with pytest.raises(DataError):
        identify_data(configure(data={"path": str(tmp_path / "none.txt")}))


def test_importing_the_configuration_loads_neither_torch_nor_numpy():
    code = "import sys, paceline.recipes.sasrec.config; print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
