"""Advice for whoever has none of our keys."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import paceline.diagnose
from paceline.config.sections import RunConfig, Section
from paceline.diagnose.elsewhere import KEY, without_keys
from paceline.diagnose.signatures import load_signatures

ROOM = Path(paceline.diagnose.__file__).parent


def advice() -> set[str]:
    """Every text of this room that names a key: of the signatures, and of the findings themselves."""
    texts = {signature.cure for signature in load_signatures()}
    for path in ROOM.glob("*.py"):
        if path.name != "elsewhere.py":
            tree = ast.parse(path.read_text())
            documents = {
                node.value
                for node in ast.walk(tree)
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            }
            constants = {node for node in ast.walk(tree) if isinstance(node, ast.Constant)} - documents
            texts |= {node.value for node in constants if isinstance(node.value, str)}
    return {text for text in texts if KEY.search(text)}


def test_there_are_words_for_every_key_that_is_named() -> None:
    assert len(advice()) > 20
    assert {text: said for text in advice() if KEY.search(said := without_keys(text))} == {}


def test_a_key_of_any_section_is_known_as_one() -> None:
    sections = {
        name
        for name, field in RunConfig.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
    }
    assert {name for name in sections if not KEY.search(f"set {name}.some_key=1")} == {"run"}, "run.phase is the SDK's"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "raise data.num_workers or data.prefetch; paceline bench loader CONFIG says what the loader can bring",
            "raise num_workers or prefetch_factor of its loader",
        ),
        (
            "lower train.optimizer.lr, lengthen train.schedule.warmup_steps, set train.clip_norm=1.0, or precision.mode=fp32; paceline triage RUN tries them",
            "lower the learning rate, lengthen its warm-up, clip gradients at 1.0, or train in float32",
        ),
        (
            "launch.env.PYTORCH_ALLOC_CONF=expandable_segments:True; then a smaller train.micro_batch at the same global batch",
            "PYTORCH_ALLOC_CONF=expandable_segments:True in the environment; then a smaller batch per rank at the same global batch",
        ),
        (
            "look at what it reads from, its disk and its loader processes; paceline bench loader CONFIG says what the loader can bring",
            "look at what it reads from, its disk and its loader processes",
        ),
        ('declare it with run.phase("evaluate"); see run.json', 'declare it with run.phase("evaluate"); see run.json'),
    ],
)
def test_the_words_make_sentences(said: str, words: str) -> None:
    assert without_keys(said) == words
