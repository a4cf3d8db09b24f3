from pathlib import Path
from textwrap import dedent

import pytest

from paceline.config.source import plain_scalar, read_layer, show
from paceline.errors import ConfigError, UsageError


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "a.yaml"
    path.write_text(dedent(text))
    return path


def test_every_value_has_its_line(tmp_path):
    path = write(
        tmp_path,
        """\
        recipe: sasrec
        train:
          max_steps: 500   # a comment

          optimizer: {lr: 1e-3,
                      name: sgd}
        launch:
          env:
            NCCL_DEBUG: INFO
        """,
    )
    layer = read_layer(path, "a.yaml")
    assert layer.problems == []
    assert layer.entries == {
        "recipe": ("sasrec", "a.yaml:1"),
        "train.max_steps": (500, "a.yaml:3"),
        "train.optimizer.lr": (0.001, "a.yaml:5"),
        "train.optimizer.name": ("sgd", "a.yaml:6"),
        "launch.env.NCCL_DEBUG": ("INFO", "a.yaml:9"),
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("false", False),
        ("on", "on"),
        ("yes", "yes"),
        ("no", "no"),
        ("1e-3", 1e-3),
        ("1.", 1.0),
        (".5", 0.5),
        ("12", 12),
        ("-3", -3),
        ("017", 17),
        ("0x10", 16),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("null", None),
        ("~", None),
        ("", None),
        ("auto", "auto"),
        ("a: b #c", "a: b #c"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text, value):
    read = plain_scalar(text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    "value", [None, True, 3, 1e-8, "true", "3", "1e5", "", "a b", "a: 'b'\n", "é", [1, "x,y"], {"A": "1"}]
)
def test_what_is_shown_reads_back(tmp_path, value):
    path = tmp_path / "a.yaml"
    path.write_text(f"run:\n  list: [{show(value)}]\n")
    assert read_layer(path).entries["run.list"].value == [value]


def test_a_key_given_twice_is_named_with_both_lines(tmp_path):
    path = write(tmp_path, "run:\n  seed: 1\n  name: x\n  seed: 2\n")
    (problem,) = read_layer(path, "a.yaml").problems
    assert "run.seed" in problem.what
    assert problem.where == "a.yaml:2 and a.yaml:4"


def test_the_same_key_dotted_and_nested_is_given_twice(tmp_path):
    path = write(tmp_path, "run.seed: 1\nrun:\n  seed: 2\n")
    (problem,) = read_layer(path, "a.yaml").problems
    assert problem.where == "a.yaml:1 and a.yaml:3"
    assert "1 and as 2" in problem.what


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("", "a.yaml", "empty"),
        ("- 1\n- 2\n", "a.yaml:1", "mapping"),
        ("just words\n", "a.yaml:1", "mapping"),
        ("run:\n  seed: [1, 2\n", "a.yaml:3", "YAML"),
        ("run:\n\tseed: 1\n", "a.yaml:2", "YAML"),
        ("run:\n  seed: !!int x\n", "a.yaml:2", "tags"),
        ("a: *b\n", "a.yaml:1", "YAML"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(tmp_path, text, where, what):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_layer(path, "a.yaml")
    assert caught.value.problems[0].where == where
    assert what in caught.value.problems[0].what


def test_an_alias_that_contains_itself_ends(tmp_path):
    layer = read_layer(write(tmp_path, "run: &r\n  seed: *r\n"), "a.yaml")
    assert "contains itself" in layer.problems[0].what


def test_missing_unreadable_and_binary_files(tmp_path):
    with pytest.raises(UsageError, match="no such configuration"):
        read_layer(tmp_path / "none.yaml")
    with pytest.raises(UsageError, match="cannot read"):
        read_layer(tmp_path)
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_layer(tmp_path / "b.yaml")
