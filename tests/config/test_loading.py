from pathlib import Path

import pytest

from paceline.config.describe import describe
from paceline.config.loading import resolve
from paceline.config.sections import RunConfig
from paceline.config.source import Entry, Layer, read_layer
from paceline.errors import ConfigError, Problem

BASE = Layer({"recipe": Entry("x", "a.yaml:1")})


def problems_of(overrides: list[str], base: Layer = BASE) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        resolve(RunConfig, base, overrides)
    return list(caught.value.problems)


def test_precedence_and_the_origin_of_every_value():
    base = Layer(
        {
            "recipe": Entry("x", "a.yaml:1"),
            "run.seed": Entry(1, "a.yaml:2"),
            "train.max_steps": Entry(10, "a.yaml:3"),
            "launch.nproc": Entry(8, "a.yaml:4"),
        }
    )
    overrides = ["train.max_steps=5"]
    resolved = resolve(RunConfig, base, overrides, {"launch.nproc": (2, "flag --nproc")})
    assert (resolved.config.run.seed, resolved.config.train.max_steps, resolved.config.launch.nproc) == (1, 5, 2)
    assert resolved.origins.keys() == describe(RunConfig).keys()
    assert resolved.origins["run.seed"] == "a.yaml:2"
    assert resolved.origins["train.max_steps"] == "override 'train.max_steps=5'"
    assert resolved.origins["launch.nproc"] == "flag --nproc"
    assert resolved.origins["run.name"] == "default"


def test_an_override_and_a_flag_must_agree():
    flags = {"launch.nproc": (2, "flag --nproc"), "launch.gpus": ([0, 4], "flag --gpus")}
    assert resolve(RunConfig, BASE, ["launch.nproc=2", "launch.gpus=[0,4]"], flags).config.launch.nproc == 2
    with pytest.raises(ConfigError) as caught:
        resolve(RunConfig, BASE, ["launch.nproc=4", "launch={gpus: [1]}"], flags)
    assert [(problem.what, problem.where) for problem in caught.value.problems] == [
        ("launch.nproc is given twice, as 4 and as 2", "override 'launch.nproc=4' and flag --nproc"),
        ("launch.gpus is given twice, as [1] and as [0, 4]", "override 'launch={gpus: [1]}' and flag --gpus"),
    ]


def test_a_flag_that_is_no_text_is_refused_in_one_line():
    flags = {"run.out": ("l\udce4uf", "flag --out")}
    with pytest.raises(ConfigError) as caught:
        resolve(RunConfig, BASE, [], flags)
    (problem,) = caught.value.problems
    assert problem.what == "this flag is not UTF-8 text, so that config.yaml could not hold it"
    assert problem.where == "flag --out 'l\\udce4uf'"


def test_three_wrong_things_are_reported_together_with_their_places(tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_text("recipe: x\ntrain:\n  max_stepz: 5\n  global_batch: many\n")
    problems = problems_of(["parallel.backend=ncll"], read_layer(path, "a.yaml"))
    assert [problem.where for problem in problems] == ["a.yaml:3", "a.yaml:4", "override 'parallel.backend=ncll'"]
    unknown, wrong_type, wrong_choice = problems
    assert "train.max_stepz" in unknown.what
    assert "train.max_steps" in unknown.what
    assert wrong_type.what == "train.global_batch=many must be an integer >= 1"
    assert "auto, nccl or gloo" in wrong_choice.what
    assert wrong_choice.do == "set parallel.backend=nccl"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("lr", "train.optimizer.lr"),
        ("train.lr", "train.optimizer.lr"),
        ("train.max_step", "train.max_steps"),
        ("trian.epochs", "train.epochs"),
        ("Train.Epochs", "train.epochs"),
        ("warmup_step", "train.schedule.warmup_steps"),
        ("seed", "run.seed"),
    ],
)
def test_an_unknown_key_names_the_nearest(given, meant):
    (problem,) = problems_of([f"{given}=1"])
    assert f"did you mean {meant}?" in problem.what
    assert f"{meant}=1" in problem.do


def test_the_nearest_key_is_not_given_a_value_that_it_cannot_take():
    (refused,) = problems_of(["parallel.bakend=torch"])
    assert refused.do == "set parallel.backend to auto, nccl or gloo, or remove it"
    (carried,) = problems_of(["parallel.bakend=gloo"])
    assert carried.do == "set parallel.backend=gloo, or remove it"
    (number,) = problems_of(["train.epoch=0"])
    assert number.do == "set train.epochs to an integer >= 1 or null, or remove it"


def test_a_key_like_no_other_gets_the_sections():
    (problem,) = problems_of(["zzz.qqq=1"])
    assert "train" in problem.do


@pytest.mark.parametrize(
    ("override", "allowed"),
    [
        ("train.max_steps=0", "an integer >= 1 or null"),
        ("train.max_steps=true", "an integer >= 1 or null"),
        ("train.max_steps='5'", "an integer >= 1 or null"),
        ("train.max_steps=1.5", "an integer >= 1 or null"),
        ("run.seed=null", "an integer >= 0 and < 9223372036854775808"),
        ("run.deterministic=1", "true or false"),
        ("run.deterministic=yes", "true or false"),
        ("run.name=5", "a text"),
        ("train.optimizer.lr=.nan", "a number > 0"),
        ("train.optimizer.lr=.inf", "a number > 0"),
        ("train.optimizer.momentum=1", "a number >= 0 and < 1"),
        ("train.optimizer.betas=[0.9]", "a list of 2 numbers >= 0 and < 1"),
        ("train.optimizer.no_decay=bias", "a list of texts"),
        ("launch.nproc=many", "auto or an integer >= 1"),
        ("launch.gpus=[0,-1]", "a list of integers >= 0 or null"),
        ("launch.env=3", "a mapping of names to values"),
    ],
)
def test_a_wrong_value_is_one_problem_that_says_what_is_allowed(override, allowed):
    (problem,) = problems_of([override])
    assert problem.what.endswith(f"must be {allowed}")
    assert problem.where == f"override '{override}'"
    assert problem.do


@pytest.mark.parametrize("given", ["train.max_steps={}", "launch.nproc={}", "launch.gpus=[0,{}]"])
def test_a_whole_number_has_64_bits_at_most(given):
    (problem,) = problems_of([given.format(2**63)])
    assert "whole numbers lie between" in problem.what
    assert problem.where == f"override '{given.format(2**63)}'"
    resolve(RunConfig, BASE, [given.format(2**63 - 1)])


def test_words_for_booleans_are_translated():
    (problem,) = problems_of(["run.deterministic=on"])
    assert problem.do == "set run.deterministic=true"


def test_numbers_that_mean_the_same_are_accepted():
    config = resolve(RunConfig, BASE, ["train.max_steps=1e3", "train.clip_norm=1"]).config
    assert config.train.max_steps == 1000
    assert type(config.train.max_steps) is int
    assert config.train.clip_norm == 1.0


def test_a_section_given_as_a_value_and_a_value_given_as_a_section():
    (problem,) = problems_of(["train.optimizer=adamw"])
    assert "train.optimizer is a section" in problem.what
    assert "train.optimizer.name" in problem.do
    (problem,) = problems_of(["train.max_steps.x=1"])
    assert "train.max_steps.x" in problem.what
    resolve(RunConfig, Layer(BASE.entries | {"train": Entry(None, "a.yaml:2")}))  # `train:` with nothing below it


@pytest.mark.parametrize("override", ["data=null", "train=", "train.optimizer={}"])
def test_an_override_cannot_empty_a_section(override):
    (problem,) = problems_of([override])
    assert "is a section with keys of its own" in problem.what
    assert problem.where == f"override '{override}'"


def test_a_missing_recipe():
    (problem,) = problems_of([], Layer())
    assert problem.what == "recipe is missing"


def test_entries_of_a_mapping_are_joined_and_an_empty_one_clears():
    base = Layer(BASE.entries | {"launch.env.NCCL_DEBUG": Entry("INFO", "a.yaml:2")})
    resolved = resolve(RunConfig, base, ["launch.env.NCCL_ALGO=Ring"])
    assert resolved.config.launch.env == {"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"}
    assert resolved.origins["launch.env"] == "a.yaml:2, override 'launch.env.NCCL_ALGO=Ring'"
    assert resolve(RunConfig, base, ["launch.env={}"]).config.launch.env == {}


def test_problems_of_every_layer_and_of_elsewhere_arrive_together():
    base = Layer(BASE.entries, [Problem("in the file")])
    with pytest.raises(ConfigError) as caught:
        resolve(RunConfig, base, ["oops"], problems=[Problem("elsewhere")])
    assert [p.what for p in caught.value.problems] == ["elsewhere", "in the file", "'oops' has no value"]
