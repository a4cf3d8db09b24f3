"""What a configuration may not say, and what it says in vain."""

from __future__ import annotations

import pytest

from paceline.config.contradictions import Facts
from paceline.errors import ConfigError
from paceline.recipes.job import load_job


def problems(*overrides: str) -> list[str]:
    try:
        load_job("csa", overrides, environ={}).check(Facts(world_size=1, num_gpus=0))
    except ConfigError as error:
        return [f"{problem.what} | {problem.where} | {problem.do}" for problem in error.problems]
    return []


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["data.source=manifest"], "data.source=manifest without data.manifest"),
        (["data.source=tree"], "data.source=tree without data.path"),
        (["data.min_seconds=4"], "data.min_seconds=4 is more than data.max_seconds=3"),
        (["model.speech=./nowhere"], "there is no encoder in ./nowhere: no such directory | model.speech"),
        (["model.text=/a/b/c"], "there is no encoder in /a/b/c: no such directory | model.text"),
        (["train.global_batch=1"], "train.global_batch=1 leaves nothing to tell a pair from"),
        (
            ["data.source=tree", "data.path=x", "data.splits=[a,b]", "data.validation_split=b"],
            "data.validation_split=b is also trained on",
        ),
    ],
)
def test_contradictions(overrides: list[str], expected: str) -> None:
    (found,) = problems(*overrides)
    assert expected in found


def test_the_shipped_one_and_a_name_on_the_hub_are_fine() -> None:
    assert problems() == []
    assert problems("model.speech=facebook/wav2vec2-base") == []


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("data.manifest=x", "data.source=generated"),
        ("data.trim=runtime", "data.source=generated"),
        ("data.fixed_seconds=5", "data.crop=random"),
    ],
)
def test_what_is_said_in_vain(given: str, reason: str) -> None:
    job = load_job("csa", [given], environ={})
    assert (given.partition("=")[0], reason) in job.idle(job.given)


def test_more_that_is_said_in_vain() -> None:
    overrides = ["data.crop=fixed", "data.bucket=false", "data.source=manifest", "data.top_db=40", "data.words=9"]
    job = load_job("csa", [*overrides, "data.validation_split=dev", "data.validation_share=0.2"], environ={})
    idle = dict(job.idle(job.given))
    assert idle["data.bucket"] == "data.crop=fixed: all samples are of one length"
    assert idle["data.top_db"] == "data.trim=none"
    assert idle["data.words"] == "data.source=manifest"
    assert idle["data.validation_share"] == "data.validation_split=dev"
