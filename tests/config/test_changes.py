from paceline.config.changes import changed_settings, find_changes, load_settings, settings_in
from paceline.config.dump import dump_config
from paceline.config.sections import RunConfig


def settings(**changes):
    return settings_in(dump_config(RunConfig(recipe="x", **changes)))


def test_every_difference_between_two_configurations_in_words():
    old = settings(train={"epochs": 2})
    new = settings(precision={"mode": "bf16"}, launch={"env": {"NCCL_DEBUG": "INFO"}}, run={"name": "on"})
    assert [str(change) for change in find_changes(old, new, ["precision.mode"])] == [
        "launch.env.NCCL_DEBUG: null → INFO",
        "precision.mode: auto → bf16 (numerics)",
        'run.name: "" → on',
        "train.epochs: 2 → null",
    ]
    assert find_changes(old, old) == []


def test_scalars_are_read_as_everywhere_else():
    assert settings_in("a:\n  b: 1e-3\n  c: on\n") == {"a.b": 0.001, "a.c": "on"}


def test_a_long_value_is_cut():
    (change,) = find_changes({"a": "x" * 100}, {"a": 1})
    assert len(str(change)) < 80


def test_what_cannot_be_read_has_no_settings():
    assert settings_in("a: [") == settings_in("") == settings_in("- 1") == {}


def test_what_a_configuration_changes_of_the_one_in_a_file(tmp_path):
    file = tmp_path / "config.yaml"
    assert load_settings(file) == {}
    file.write_text("a: 1\nrun:\n  out: here\n")
    old = load_settings(file)
    changed = changed_settings(old, "a: 2\nrun:\n  out: there\n", ["a"])
    assert [str(change) for change in changed] == ["a: 1 → 2 (numerics)"]
    assert changed_settings({}, "a: 2\n", []) == []
    file.write_bytes(b"\xff\xfe")
    assert load_settings(file) == {}
