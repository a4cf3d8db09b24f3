"""A job: a recipe with its resolved configuration, from what a person typed. The same for the launcher and for every worker.

job = load_job("sasrec", ["train.max_steps=5"], {"launch.nproc": (2, "flag --nproc")})
job.check(Facts(world_size=2, num_gpus=0)); job.default_root(job.identity())   -> runs/sasrec-1a2b3c4d
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paceline
from paceline.config.contradictions import Facts, check
from paceline.config.describe import describe, value_at
from paceline.config.dump import dump_config
from paceline.config.effects import find_idle
from paceline.config.fingerprint import identity_of, numerics_of
from paceline.config.loading import DEFAULT, resolve
from paceline.config.nearest import nearest
from paceline.config.sections import RunConfig
from paceline.config.source import Entry, Layer, read_layer, show
from paceline.config.toggles import check_toggles
from paceline.errors import ConfigError, UsageError
from paceline.launch.environment import check_env
from paceline.recipes.code import training_code
from paceline.recipes.command.words import config_key
from paceline.recipes.registry import find_recipe, recipe_names
from paceline.workload import Recipe

if TYPE_CHECKING:
    from paceline.launch.description import RunDescription

Flags = Mapping[str, tuple[Any, str]]
"""dotted key -> (value, "flag --name")"""


@dataclass(frozen=True)
class Job:
    """What is to be trained."""

    recipe: Recipe
    config: RunConfig
    origins: dict[str, str]
    target: str
    """the recipe or the file, as it was typed"""
    overrides: tuple[str, ...] = ()
    """everything else that was typed, flags included, as `key=value`: target and overrides give the same job again"""

    def check(self, facts: Facts) -> None:
        """Refuses contradictions and unknown names in launch.env, all at once."""
        problems = [
            *check(self.config, self.origins, facts),
            *check_env(self.config.launch.env, self.origins["launch.env"]),
            *self.recipe.check(self.config),
        ]
        if problems:
            raise ConfigError(problems=problems)

    @property
    def given(self) -> frozenset[str]:
        """The keys that somebody gave another value than the default; a dumped configuration names every key."""
        keys = describe(type(self.config))
        return frozenset(
            name
            for name, origin in self.origins.items()
            if origin != DEFAULT and value_at(self.config, name) != keys[name].default
        )

    def idle(self, given: Collection[str]) -> list[tuple[str, str]]:
        """(key, reason) of what was given and changes nothing, on whatever machine."""
        heeded = self.recipe.heeds(self.config)
        unheeded = [(key, reason) for key, reason in find_idle(self.config, given) if key not in heeded]
        return [*unheeded, *self.recipe.find_idle(self.config, given)]

    def identity(self, weights_digest: str | None = None) -> dict[str, Any]:
        """The fingerprint and what it is made of; reads the data to identify it, and raises DataError if it cannot.

        `weights_digest` says whose weights it begins with, where it does not begin with its own.
        """
        return identity_of(self.config, self.recipe.identify_data(self.config), weights_digest)

    def default_root(self, identity: Mapping[str, Any]) -> Path:
        """Where the run lives: where the configuration says, or where the same command finds it again."""
        return Path(self.config.run.out or f"runs/{self.recipe.name}-{identity['fingerprint'][:8]}")

    def describe_run(self, argv: Sequence[str], identity: Mapping[str, Any]) -> RunDescription:
        """What the run directory will say about this job."""
        from paceline.launch.description import RunDescription

        return RunDescription(
            self.recipe.name,
            self.config.run.name,
            list(argv),
            dump_config(self.config),
            self.origins,
            identity,
            numerics_of(self.recipe.schema),
            training_code(self.recipe),
        )


def load_job(
    target: str,
    overrides: Sequence[str] = (),
    flags: Flags | None = None,
    environ: Mapping[str, str] | None = None,
) -> Job:
    """The job that a recipe's name or a YAML file, overrides and flags describe."""
    recipe, base = _base(target)
    if recipe.foreign is not None:
        overrides = [config_key(text) for text in overrides]
    toggles = check_toggles(os.environ if environ is None else environ, describe(recipe.schema))
    resolved = resolve(recipe.schema, base, overrides, flags, toggles)
    if resolved.config.recipe != recipe.name:
        what = f"recipe={resolved.config.recipe} is another recipe than {recipe.name}"
        raise ConfigError(what, resolved.origins["recipe"], f"give {resolved.config.recipe} in place of {target}")
    typed = (*overrides, *(f"{key}={show(value)}" for key, (value, _) in (flags or {}).items()))
    return Job(recipe, resolved.config, resolved.origins, target, typed)


_SHIPPED = Path(paceline.__file__).parent / "configs"


def shipped_names() -> list[str]:
    """Every configuration that comes with the package, by the name to type."""
    return sorted(path.stem for path in _SHIPPED.glob("*.yaml"))


def known_names() -> list[str]:
    """Recipes and configurations that are known by name, wherever one is; anything else is a path."""
    return list(dict.fromkeys([*recipe_names(), *shipped_names()]))


def _base(target: str) -> tuple[Recipe, Layer]:
    names = known_names()
    shipped = _SHIPPED / f"{target}.yaml"
    if target in names and not shipped.is_file():
        recipe = find_recipe(target)
        if recipe.config_file is not None:
            return _read(recipe.config_file, f"{recipe.config_file.parent.name}/{recipe.config_file.name}")
        return recipe, Layer({"recipe": Entry(target, f"argument '{target}'")})
    if target in names:
        return _read(shipped, f"configs/{target}.yaml")
    path = Path(target)
    if path.is_dir():
        inside = path / "config.yaml"
        do = f"give {inside}" if inside.is_file() else "give a recipe or a YAML file"
        raise UsageError(f"{target} is a directory, not a configuration", target, do)
    if not path.exists() and path.suffix not in {".yaml", ".yml"}:
        raise _neither(target, names)
    if not path.exists():
        near = nearest(path.name, [p.name for p in path.parent.glob("*.y*ml")])
        do = f"use {path.parent / near}" if near else f"check the path, or name a recipe: {', '.join(names)}"
        raise UsageError(f"there is no configuration file {target}", target, do)
    return _read(path, target)


def _read(path: Path, shown: str) -> tuple[Recipe, Layer]:
    layer = read_layer(path, shown)
    named = layer.entries.get("recipe")
    if named is None or not isinstance(named.value, str):
        known = recipe_names()
        what = "the configuration does not name its recipe"
        raise ConfigError(what, f"{shown}:1", f"add a line `recipe: {known[0]}` (there are: {', '.join(known)})")
    try:
        return find_recipe(named.value), layer
    except UsageError as error:
        raise ConfigError(error.problems[0].what, named.origin, error.problems[0].do) from error


def _neither(target: str, names: list[str]) -> UsageError:
    close = nearest(target, [*names, *(p.name for p in Path().glob("*.y*ml"))])
    what = f"{target!r} is neither a recipe nor a configuration file"
    do = f"use {close}" if close else f"name a recipe ({', '.join(names)}) or a YAML file"
    if "=" in target:
        do = f"name the recipe first: {names[0]} {target}"
    return UsageError(what, "", do)
