from pathlib import Path

import pytest

from paceline.config.contradictions import Facts
from paceline.errors import ConfigError, UsageError
from paceline.recipes.job import load_job

CPU = Facts(1, 0)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("recipe: sasrec\ntrain:\n  max_steps: 7\n")
    return "mine.yaml"


def test_a_file_is_named_as_it_was_typed(config):
    job = load_job(config)
    assert job.recipe.name == "sasrec"
    assert job.config.train.max_steps == 7
    assert job.origins["train.max_steps"] == "mine.yaml:3"


def test_a_recipe_uses_its_shipped_file(config):
    job = load_job("sasrec")
    assert job.config.recipe == "sasrec"
    assert job.origins["recipe"].startswith("configs/sasrec.yaml:")
    job.check(CPU)


@pytest.mark.parametrize(
    ("target", "do"),
    [
        ("sasrek", "use sasrec"),
        ("mine", "use mine.yaml"),
        ("mien.yaml", "use mine.yaml"),
        ("qqqqqq", "name a recipe"),
        ("train.max_steps=5", "name the recipe first"),
        (".", "give a recipe or a YAML file"),
    ],
)
def test_what_is_neither_names_the_nearest(config, target, do):
    with pytest.raises(UsageError) as caught:
        load_job(target)
    assert do in caught.value.problems[0].do


def test_a_run_directory_points_at_its_configuration(config, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("recipe: sasrec\n")
    with pytest.raises(UsageError) as caught:
        load_job("run")
    assert caught.value.problems[0].do == "give run/config.yaml"


@pytest.mark.parametrize(
    ("text", "where"), [("train: {}\n", "bad.yaml:1"), ("run: {}\nrecipe: sasrek\n", "bad.yaml:2")]
)
def test_a_file_must_name_a_recipe(config, tmp_path, text, where):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_job("bad.yaml")
    assert caught.value.problems[0].where == where
    assert "sasrec" in caught.value.problems[0].do


def test_another_recipe_cannot_be_asked_for_by_override(config):
    with pytest.raises(ConfigError) as caught:
        load_job(config, ["recipe=other"])
    assert caught.value.problems[0].where == "override 'recipe=other'"


def test_environment_toggles_and_wrong_keys_arrive_together(config):
    with pytest.raises(ConfigError) as caught:
        load_job(config, ["train.epoch=1"], environ={"PACELINE_RUN_SEED": "3"})
    assert [problem.where for problem in caught.value.problems] == ["environment", "override 'train.epoch=1'"]


def test_check_reports_contradictions_environment_and_the_recipes_own_together(config):
    job = load_job(config, ["parallel.backend=nccl", "launch.env.NCCL_DEBUGG=INFO", "model.heads=7"])
    with pytest.raises(ConfigError) as caught:
        job.check(CPU)
    whats = "\n".join(problem.what for problem in caught.value.problems)
    assert len(caught.value.problems) == 3
    for word in ("parallel.backend=nccl", "NCCL_DEBUGG", "model.heads=7"):
        assert word in whats


def test_target_and_overrides_give_the_same_job_again(config):
    flags = {
        "launch.nproc": (2, "flag --nproc"),
        "run.out": ("a b", "flag --out"),
        "launch.gpus": ([0, 4], "flag --gpus"),
    }
    job = load_job(config, ["train.max_steps=5", "launch.nproc=2"], flags)
    assert job.overrides[:2] == ("train.max_steps=5", "launch.nproc=2")
    assert job.overrides[2:] == ("launch.nproc=2", 'run.out="a b"', "launch.gpus=[0, 4]")
    assert load_job(job.target, job.overrides).config == job.config


def test_an_override_and_a_flag_that_differ_are_refused_with_both(config):
    with pytest.raises(ConfigError) as caught:
        load_job(config, ["run.out=a"], {"run.out": ("b", "flag --out")})
    (problem,) = caught.value.problems
    assert problem.what == "run.out is given twice, as a and as b"
    assert problem.where == "override 'run.out=a' and flag --out"


def test_a_run_is_described_with_the_keys_that_change_digits(config):
    job = load_job(config)
    description = job.describe_run(["paceline"], job.identity())
    assert "precision.mode" in description.numerics
    assert "run.seed" not in description.numerics
    assert "max_steps: 7" in description.config_text


def test_the_same_command_finds_its_run_again(config):
    job = load_job(config)
    root = job.default_root(job.identity())
    assert root.parent == Path("runs")
    assert root.name.startswith("sasrec-")
    assert len(root.name) == len("sasrec-") + 8
    longer = load_job(config, ["train.max_steps=9", "launch.nproc=2"])
    assert longer.default_root(longer.identity()) == root
    other = load_job(config, ["run.seed=1"])
    assert other.default_root(other.identity()) != root
    assert job.default_root(job.identity("weights")) != root
    named = load_job(config, ["run.out=here"])
    assert named.default_root(named.identity()) == Path("here")


def test_a_value_that_equals_the_default_was_not_given(tmp_path):
    job = load_job("sasrec", ["parallel.bucket_mb=25", "parallel.timeout_s=60"])
    assert "parallel.bucket_mb" not in job.given
    assert "parallel.timeout_s" in job.given
