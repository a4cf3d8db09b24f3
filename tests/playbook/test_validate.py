"""The shipped validation, before anything starts: what it would run for each recipe, and what it skips with which reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.errors import ConfigError
from paceline.playbook.playbook import Playbook, load_playbook
from paceline.playbook.preview import check_play, describe_play
from paceline.playbook.remedy import choose_remedies, choose_remedy
from paceline.playbook.selection import select
from paceline.playbook.stage import Stage
from paceline.triage.ladder import SYMPTOMS
from tests.architecture.rooms import ROOT

FOREIGN = str(ROOT / "examples" / "foreign-script" / "run.yaml")


def load(*words: str) -> Playbook:
    return load_playbook("validate", [*words, "launch.gpus=[]"])


@pytest.mark.parametrize(
    ("config", "ranks", "skipped"),
    [
        ("sasrec", 2, ["parity", "loader"]),
        ("sasrec", 1, ["buckets", "parity", "isolation", "loader"]),
        ("tenrec", 2, ["parity", "loader"]),
        ("csa", 2, ["parity", "loader"]),
        ("nsa", 2, ["loader"]),
        ("nsa", 1, ["buckets", "isolation", "loader"]),
        (FOREIGN, 1, ["buckets", "profiled", "audit", "parity", "attribution", "isolation", "fused", "loader"]),
    ],
)
def test_every_recipe_can_be_validated(
    config: str, ranks: int, skipped: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    book = load(f"config={config}", f"launch.nproc={ranks}")
    selection = select(book)
    assert list(selection.skipped) == skipped
    assert all(selection.skipped.values())
    stage = Stage(book, selection, tmp_path / "out")
    check_play(stage)
    assert "acceptance (accept)" in "\n".join(describe_play(stage))


def test_real_data_is_for_the_loader_alone(tmp_path: Path) -> None:
    data = tmp_path / "ratings.dat"
    data.write_text("1 2 3\n")
    book = load(f"loader.data.path={data}")
    assert "loader" in select(book).names
    assert "data.path" not in book.settings("baseline", {})
    assert "data.path" in book.settings("loader", {})


def test_isolation_is_one_rank_with_its_share_whatever_is_typed_for_all() -> None:
    book = load("launch.nproc=4", "train.global_batch=128")
    settings = book.settings("isolation", {})
    assert (settings["launch.nproc"], settings["train.global_batch"]) == (1, 32)
    assert book.settings("baseline", {})["launch.nproc"] == 4


def test_every_step_that_can_fail_points_to_what_to_type() -> None:
    book = load()
    silent = [name for name, phase in book.phases.items() if not phase.remedy]
    assert silent == ["acceptance"]
    symptoms = " ".join(line for phase in book.phases.values() for lines in phase.remedy.values() for line in lines)
    assert all(f"--symptom {word}" in symptoms for word in SYMPTOMS)
    assert "bench parity" in symptoms
    # What no machine has in common with another is nobody's default.
    assert {name for name, limit in book.limits.items() if limit is None} == {"pace", "efficiency"}


def test_the_machine_chooses_sizes_and_thresholds() -> None:
    few, many = load("config=nsa"), load()
    assert few.settings("endure", {})["train.max_steps"] < many.settings("endure", {})["train.max_steps"]
    assert load("limits.memory_growth=0.5").limits["memory_growth"] == 0.5
    assert few.limits["memory_growth"] == 0.05


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["config=nope"], ["'nope' is neither a recipe nor a configuration file"]),
        (["sizes.baseline=x"], ["sizes.baseline=x is not a number"]),
        (["nope.key=1", "limits.pace=fast"], ["there is no key nope.key", "limits.pace=fast is not a number"]),
        (
            ["sizes.rows=0", "sizes.long=1.5"],
            ["sizes.rows=0 must be an integer >= 1", "sizes.long=1.5 must be an integer >= 1"],
        ),
        (["endure.gat=[]"], ["there is no key endure.gat"]),
        (["endre.train.max_steps=3"], ["there is no phase endre"]),
        (["limits=3", "sizes=2"], ["limits is many values, not one", "sizes is many values, not one"]),
        (["phases=3"], ["phases is many values, not one"]),
        (["bound=maybe"], ["bound=maybe is neither true nor false"]),
        (["endure.gate=null"], ["endure.gate=null: input should be a valid array"]),
        (["limits.pace=0"], ["limits.pace=0 is no threshold: it must be above 0"]),
        (["limits.gate_collapsed=-1"], ["limits.gate_collapsed=-1 is no threshold: it must be 0 or above"]),
    ],
)
def test_a_mistake_is_said_alone(words: list[str], says: list[str]) -> None:
    """Neither what could not be computed because of it, nor a threshold that everything meets."""
    with pytest.raises(ConfigError) as caught:
        load(*words)
    assert [problem.what.partition(";")[0] for problem in caught.value.problems] == says


def test_a_strict_threshold_may_be_zero() -> None:
    assert load("limits.gate_collapsed=0").limits["gate_collapsed"] == 0


def test_a_missed_result_points_to_its_own_ladder() -> None:
    remedies = load().phases["endure"].remedy
    lost = choose_remedy(remedies, ["limits.pace_loss", "pace_change_high"])
    assert lost == ["paceline diagnose {run}", "paceline triage {run} --symptom low_throughput"]
    collapsed = choose_remedy(remedies, ["observed.gate_collapsed"])
    assert collapsed[-1].endswith("instability")
    # What was only too short, or looked at too seldom, has no ladder.
    phase = load().phases["endure"]
    gate = [{"verdict": "not measured", "values": {"pace_change_high": None, "limits.pace_loss": 0.2}}]
    assert choose_remedies(phase.remedy, phase.unmeasured, gate) == ["the same command with a larger sizes.long"]
    gate.append({"verdict": "not measured", "values": {"observed.gate_collapsed": None}})
    assert choose_remedies(phase.remedy, phase.unmeasured, gate)[-1].endswith("a smaller sizes.observed")
    gate.append({"verdict": "not met", "values": {"incidents": 1}})
    assert choose_remedies(phase.remedy, phase.unmeasured, gate)[-1].endswith("--symptom deadlock")
    assert len(choose_remedies(phase.remedy, phase.unmeasured, [])) == 5
    # Where the command itself failed, nobody knows yet which one it is.
    assert len(choose_remedy(remedies, [])) == 5
