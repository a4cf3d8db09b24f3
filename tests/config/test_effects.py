"""What has no effect is found when somebody gave it, and only then."""

from __future__ import annotations

import pytest

from paceline.config.effects import find_idle, find_idle_length
from paceline.config.loading import resolve
from paceline.config.sections import RunConfig, Train
from paceline.config.source import Entry, Layer


def idle(*overrides: str) -> dict[str, str]:
    resolved = resolve(RunConfig, Layer({"recipe": Entry("r", "test")}), overrides, {})
    given = {name for name, origin in resolved.origins.items() if origin != "default"}
    return dict(find_idle(resolved.config, given))


@pytest.mark.parametrize(
    ("epochs", "max_steps", "found"),
    [
        (2, 21, {"train.max_steps": "train.epochs=2 ends the run after 20 steps"}),
        (2, 20, {}),
        (2, 7, {"train.epochs": "train.max_steps=7 ends the run sooner (train.epochs=2 would be 20 steps)"}),
        (None, 7, {}),
        (2, None, {}),
    ],
)
def test_a_length_that_is_never_reached(epochs: int | None, max_steps: int | None, found: dict[str, str]) -> None:
    train = Train(global_batch=10, epochs=epochs, max_steps=max_steps)
    assert dict(find_idle_length(train, 95, {"train.epochs", "train.max_steps"})) == found
    assert dict(find_idle_length(train, 95, set())) == {}


@pytest.mark.parametrize(
    ("overrides", "key", "because"),
    [
        (("train.lr_scaling.base_batch=64",), "train.lr_scaling.base_batch", "rule=none"),
        (("train.schedule.decay_every=5",), "train.schedule.decay_every", "kind=constant"),
        (
            ("train.schedule.kind=linear", "train.schedule.decay_factor=0.5"),
            "train.schedule.decay_factor",
            "kind=linear",
        ),
        (("train.schedule.min_ratio=0.1",), "train.schedule.min_ratio", "kind=constant"),
        (("train.optimizer.momentum=0.9",), "train.optimizer.momentum", "adamw"),
        (("train.optimizer.name=sgd", "train.optimizer.eps=1e-6"), "train.optimizer.eps", "sgd"),
        (("train.optimizer.name=sgd", "train.optimizer.betas=[0.8, 0.9]"), "train.optimizer.betas", "sgd"),
        (("train.optimizer.no_decay=[bias]",), "train.optimizer.no_decay", "weight_decay=0"),
        (("train.compile.mode=max-autotune-no-cudagraphs",), "train.compile.mode", "train.compile.enabled=false"),
        (("train.compile.dynamic=true",), "train.compile.dynamic", "train.compile.enabled=false"),
        (("parallel.compression=bf16", "parallel.powersgd.rank=4"), "parallel.powersgd.rank", "compression=bf16"),
        (("parallel.powersgd.start_step=4",), "parallel.powersgd.start_step", "compression=none"),
        (("parallel.deepspeed.dump_state=true",), "parallel.deepspeed", "engine=torch"),
        (("data.num_workers=0", "data.prefetch=4"), "data.prefetch", "num_workers=0"),
        (("data.num_workers=0", "data.loader_timeout_s=4"), "data.loader_timeout_s", "num_workers=0"),
        (("telemetry.profile.ranks=all",), "telemetry.profile.ranks", "start_step is not set"),
        (("checkpoint.best.direction=min",), "checkpoint.best.direction", "checkpoint.best.metric"),
        (("attention.fallback=error",), "attention.fallback", "impl=auto"),
        (("attention.impl=eager", "attention.exclude=[math]"), "attention.exclude", "impl=eager"),
        (
            ("attention.impl=flash", "attention.exclude=[math]", "attention.fallback=error"),
            "attention.exclude",
            "flash",
        ),
    ],
)
def test_found_with_the_reason(overrides, key, because):
    found = idle(*overrides)
    assert list(found) == [key]
    assert because in found[key]


def test_without_checkpoints_their_settings_are_idle():
    keys = [
        "checkpoint.every_steps=5",
        "checkpoint.every_epochs=2",
        "checkpoint.keep=1",
        "checkpoint.asynchronous=false",
    ]
    assert idle(*keys) == {}
    found = idle("checkpoint.enabled=false", *keys)
    assert found == {key.partition("=")[0]: "checkpoint.enabled=false" for key in keys}


def test_nothing_is_said_of_what_has_an_effect_or_was_not_given():
    assert idle() == {}
    assert idle("train.schedule.kind=step", "train.schedule.decay_every=5", "train.schedule.decay_factor=0.5") == {}
    assert idle("train.schedule.kind=cosine", "train.schedule.min_ratio=0.1") == {}
    assert idle("train.optimizer.name=sgd", "train.optimizer.momentum=0.9") == {}
    assert idle("data.num_workers=1", "data.prefetch=4") == {}
    assert idle("train.compile.enabled=true", "train.compile.dynamic=true") == {}
    assert idle("parallel.compression=powersgd", "parallel.powersgd.rank=4") == {}
    assert idle("checkpoint.best.metric=loss", "checkpoint.best.direction=min") == {}
    assert idle("attention.impl=flash", "attention.exclude=[math]", "attention.fallback=warn") == {}
    assert idle("attention.exclude=[math]") == {}
