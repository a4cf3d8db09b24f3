import pytest

from paceline.config.overrides import parse_overrides


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("train.max_steps=5", "train.max_steps", 5),
        ("run.name=a=b", "run.name", "a=b"),
        ("run.name=", "run.name", None),
        ("run.name='5'", "run.name", "5"),
        ("data.path=/tmp/a: b#c", "data.path", "/tmp/a: b#c"),
        ("launch.gpus=[0, 4]", "launch.gpus", [0, 4]),
        ("train.optimizer={lr: 1e-4}", "train.optimizer.lr", 1e-4),
        ("launch.env={}", "launch.env", {}),
        ("launch.env.NCCL_DEBUG=INFO", "launch.env.NCCL_DEBUG", "INFO"),
    ],
)
def test_split_at_the_first_equals_sign(text, key, value):
    layer = parse_overrides([text])
    assert layer.problems == []
    assert layer.entries == {key: (value, f"override '{text}'")}


@pytest.mark.parametrize("text", ["train.max_steps", "=5", ".a=5", "a..b=1", "launch.gpus=[0, 4", "run.name='x"])
def test_what_is_no_override_is_a_problem(text):
    layer = parse_overrides([text])
    (problem,) = layer.problems
    assert problem.where == f"override '{text}'"
    assert problem.do
    assert layer.entries == {}


def test_bytes_that_are_no_text_are_refused_in_one_line():
    layer = parse_overrides(["run.name=caf\udce9", "run.seed=1"])
    (problem,) = layer.problems
    assert "not UTF-8" in problem.what
    assert problem.where == "override 'run.name=caf\\udce9'"
    assert list(layer.entries) == ["run.seed"]


def test_the_same_key_twice_is_refused_with_both():
    layer = parse_overrides(["run.seed=1", "run.seed=2"])
    (problem,) = layer.problems
    assert problem.where == "override 'run.seed=1' and override 'run.seed=2'"
    assert parse_overrides(["run.seed=1", "run.seed=1"]).problems == []
    assert len(parse_overrides(["train.optimizer={lr: 1}", "train.optimizer.lr=2"]).problems) == 1
    assert len(parse_overrides(["run.deterministic=true", "run.deterministic=1"]).problems) == 1
