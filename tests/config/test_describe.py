from paceline.config.describe import describe, describe_sections, value_at
from paceline.config.sections import IDENTITY, NUMERICS, OPERATIONAL, RunConfig
from paceline.recipes.registry import find_recipe, recipe_names


def test_every_key_has_a_sentence_and_a_fingerprint_class():
    for schema in [RunConfig, *(find_recipe(name).schema for name in recipe_names())]:
        keys = describe(schema)
        assert len(keys) > 40
        for key in keys.values():
            assert key.sentence.endswith("."), key.name
            assert key.fingerprint in {IDENTITY, NUMERICS, OPERATIONAL}, key.name
            assert "<" not in key.allowed.replace("< ", "").replace("<= ", ""), (key.name, key.allowed)
        for name, sentence in describe_sections(schema).items():
            assert sentence.endswith("."), name


def test_every_field_declares_its_fingerprint_class():
    """A field made without `key` would count as operational without anybody having said so."""

    def walk(section):
        for name, field in section.model_fields.items():
            assert isinstance(field.json_schema_extra, dict), (section, name)
            assert "fingerprint" in field.json_schema_extra, (section, name)
            if hasattr(field.annotation, "model_fields"):
                walk(field.annotation)

    for schema in [RunConfig, *(find_recipe(name).schema for name in recipe_names())]:
        walk(schema)


def test_defaults_and_values_by_dotted_name():
    config = RunConfig(recipe="x")
    for key in describe(RunConfig).values():
        if key.name != "recipe":
            assert value_at(config, key.name) == key.default


def test_choices():
    assert describe(RunConfig)["parallel.backend"].choices == ("auto", "nccl", "gloo")
    assert describe(RunConfig)["launch.nproc"].choices == ("auto",)
    assert describe(RunConfig)["launch.nnodes"].allowed == "an integer >= 1 or MIN:MAX"
    assert describe(RunConfig)["attention.exclude"].allowed == (
        "a list of values, each flash, cudnn, efficient, math, eager or flex"
    )
