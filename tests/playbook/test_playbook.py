from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.errors import ConfigError, UsageError
from paceline.playbook.playbook import KINDS, Playbook, load_playbook, shipped_playbooks

Written = Callable[..., Playbook]


def problems(written: Written, text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        written(text, *overrides)
    assert all(problem.where for problem in caught.value.problems)
    return [problem.what for problem in caught.value.problems]


@pytest.mark.parametrize("name", shipped_playbooks())
def test_what_ships_loads(name: str) -> None:
    book = load_playbook(name)
    assert book.about
    assert all(phase.about for phase in book.phases.values())


def test_there_is_what_was_promised() -> None:
    names = ["csa-throughput", "p0-p3", "tenrec-cpu", "tenrec-p0-p3", "throughput", "validate"]
    assert shipped_playbooks() == names
    with pytest.raises(UsageError, match="there is no playbook 'p0p3'") as caught:
        load_playbook("p0p3")
    assert caught.value.problems[0].do == f"use p0-p3, or another of {', '.join(names)}, or a YAML file"


def test_a_recipe_with_a_playbook_of_its_own_is_given_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("recipe: csa\n")
    for config in ("csa", "csa-librispeech", "mine.yaml"):
        book = load_playbook("throughput", [f"config={config}"])
        assert (book.name, book.config) == ("csa-throughput", config)
    assert load_playbook("throughput").name == "throughput"
    assert load_playbook("throughput", ["config=sasrec-ml-1m"]).name == "throughput"
    assert load_playbook("throughput", ["config=nowhere.yaml"]).name == "throughput", "what is wrong is said later"
    assert load_playbook("p0-p3", ["config=csa"]).name == "p0-p3"
    assert load_playbook("p0-p3", ["config=tenrec-retrieval"]).name == "tenrec-p0-p3"


def test_the_screening_of_tenrec_has_its_four_cases_and_the_small_one_has_the_same_phases() -> None:
    full, small = load_playbook("tenrec-p0-p3"), load_playbook("tenrec-cpu")
    named = ("data.negatives", "model.layers", "loss.smoothing")
    cases = [tuple(case[name] for name in named) for case in full.phases["P1"].plan["cases"]]
    assert cases == [(127, 12, 0.1), (63, 12, 0.1), (127, 16, 0.1), (127, 12, 0.05)]
    assert list(full.phases) == list(small.phases)
    for name, phase in full.phases.items():
        other = small.phases[name]
        assert (phase.kind, phase.gate, phase.winners()) == (other.kind, other.gate, other.winners())
    assert full.winner_keys("P1") == small.winner_keys("P1") == named


def test_all_that_is_wrong_is_said_at_once_with_the_nearest_name(written: Written) -> None:
    found = problems(
        written,
        """
confg: sasrec
phases:
  P0: {kind: train, gat: [failures == 0]}
  P1: {kind: swep}
  P2: {kind: sweep, axis: {model.blocks: [1]}}
  P3: {kind: export}
  P4: {kind: train, enabled: maybe}
  train: {kind: train}
  P5: train
""",
    )
    assert "there is no key confg in a playbook; did you mean config?" in found
    assert "there is no key P0.gat in a phase of kind train; did you mean gate?" in found
    assert "P1.kind=swep is no kind of phase" in found
    assert "there is no key P2.axis in a phase of kind sweep; did you mean axes?" in found
    assert "P3.of is missing" in found
    assert any(what.startswith("P4.enabled=maybe: ") for what in found)
    assert any("cannot be called train" in what for what in found)
    assert "a phase is a mapping with a kind" in found
    assert "the playbook does not say what it trains" in found


def test_an_override_goes_where_it_belongs(written: Written) -> None:
    book = written(
        """
config: sasrec
set: {run.seed: 3}
phases:
  P0: {kind: train, set: {train.max_steps: 5}, gate: failures == 0}
  P1: {kind: sweep, axes: {model.blocks: [1, 2]}, steps: 30}
  P2: {kind: export, of: P0}
""",
        "P1.steps=50",
        "P1.axes.model.blocks=[3]",
        "P1.train.global_batch=8",
        "P0.train.max_steps=7",
        "P0.gate=[final_loss < 4, failures == 0]",
        "P2.enabled=false",
        "train.clip_norm=2",
        "train.epochs=2",
        "config=mine.yaml",
    )
    assert book.config == "mine.yaml"
    assert book.settings("P0", {}) == {"run.seed": 3, "train.max_steps": 7, "train.clip_norm": 2, "train.epochs": 2}
    assert book.phases["P0"].gate == ["final_loss < 4", "failures == 0"]
    # How long a trial is, its plan says.
    assert book.settings("P1", {}) == {"run.seed": 3, "train.global_batch": 8, "train.clip_norm": 2}
    assert book.not_for("P1") == ["train.epochs is not for P1: its `steps` say how long a trial is"]
    assert book.phases["P1"].model_dump()["plan"] == {"axes": {"model.blocks": [3]}, "steps": 50}
    assert book.phases["P2"].enabled is False
    assert book.settings("P2", {}) == {}


def test_a_phase_that_is_not_there(written: Written) -> None:
    text = "config: sasrec\nphases: {P0: {kind: train}, P1: {kind: train}}\n"
    assert problems(written, text, "P9.train.epochs=1") == ["there is no phase P9"]


def test_what_is_typed_comes_before_what_was_found_and_that_before_what_is_written(written: Written) -> None:
    text = "config: sasrec\nset: {model.blocks: 1}\nphases: {P0: {kind: train, set: {model.heads: 1}}}\n"
    used = {"model.blocks": 2, "model.heads": 2, "model.width": 8}
    settings = written(text, "P0.model.width=16").settings("P0", used)
    assert settings == {"model.blocks": 2, "model.heads": 2, "model.width": 16}


@pytest.mark.parametrize("name", sorted(KINDS))
def test_what_a_phase_may_say_and_report_is_documented(name: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "playbooks.md").read_text()
    documented = set(re.findall(r"`([\w.]+)", text))
    own = {word for word in KINDS[name].model_fields if word != "plan"}
    reported = {word for word in KINDS[name].reports.names if not word.startswith(("a.", "b."))}
    assert (own | reported) - documented == set()
