from pathlib import Path

import pytest

from paceline.config.describe import describe
from paceline.config.dump import dump_config
from paceline.config.loading import resolve
from paceline.config.sections import RunConfig
from paceline.config.source import Entry, Layer, read_layer
from paceline.recipes.registry import find_recipe, recipe_names

ODD = [
    "run.name='yes: \"it\" is #1, é [x]'",
    "run.out='true'",
    "launch.env={NCCL_DEBUG: INFO, NCCL_ALGO: '1', NCCL_NTHREADS: 2}",
    "launch.gpus=[0, 4]",
    "train.optimizer.eps=1e-12",
    "train.optimizer.no_decay=[]",
    "train.max_steps=7",
]


@pytest.mark.parametrize("overrides", [[], ODD])
def test_reading_a_dump_gives_an_equal_configuration_of_every_recipe(tmp_path: Path, overrides):
    for name in recipe_names():
        schema = find_recipe(name).schema
        config = resolve(schema, Layer({"recipe": Entry(name, "test")}), overrides).config
        path = tmp_path / f"{name}.yaml"
        path.write_text(dump_config(config))
        again = resolve(schema, read_layer(path))
        assert again.config == config
        assert all(origin.startswith(str(path)) for key, origin in again.origins.items() if key != "launch.env")


def test_a_dump_has_every_key_on_its_own_line():
    lines = dump_config(RunConfig(recipe="x")).splitlines()
    values = [line for line in lines if not line.endswith(":")]
    assert len(values) == len(describe(RunConfig))
    assert "    betas: [0.9, 0.999]" in lines
