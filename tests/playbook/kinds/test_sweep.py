from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from paceline.errors import ConfigError
from paceline.playbook.kinds.sweep import Sweep
from paceline.playbook.phase import Scene

ALONE = {"launch.gpus": []}


def build(**plan: object) -> Sweep:
    return Sweep.model_validate({"kind": "sweep", "plan": {"steps": 30} | plan})


def scene(settings: dict[str, object], **more: object) -> Scene:
    return Scene("P1", Path("out/P1"), 1, "sasrec", ALONE | settings, **more)  # type: ignore[arg-type]


def plan_of(phase: Sweep, seen: Scene) -> dict[str, object]:
    (text,) = phase.plan_work(seen).files.values()
    content: dict[str, object] = yaml.safe_load(text)
    return content


def test_what_is_varied_here_is_not_fixed_by_an_earlier_winner() -> None:
    phase = build(axes={"model.blocks": [1, 2]})
    seen = scene({"model.blocks": 2, "model.heads": 1}, used=("model.blocks", "model.heads"))
    assert plan_of(phase, seen)["set"] == {"launch.gpus": [], "model.heads": 1}
    phase.check(seen)


def test_what_is_varied_here_and_set_by_hand_is_refused() -> None:
    phase = build(axes={"model.blocks": [1, 2]})
    with pytest.raises(ConfigError, match="is an axis, and set besides") as caught:
        phase.check(scene({"model.blocks": 2}))
    assert "/" not in caught.value.problems[0].where  # the file was ours, and is gone


def test_leading_cases_bring_their_baseline_unless_the_plan_has_one() -> None:
    cases = [{"model.blocks": 1}, {"model.blocks": 2}]
    seen = scene({}, cases=cases, baseline=cases[1])
    assert plan_of(build(), seen)["baseline"] == cases[1]
    assert plan_of(build(baseline=cases[0]), seen)["baseline"] == cases[0]


def test_another_plan_is_other_work_in_the_same_directory(tmp_path: Path) -> None:
    first, second = (build(axes={"model.blocks": values}).plan_work(scene({})) for values in ([1], [1, 2]))
    assert first.fingerprint(tmp_path) != second.fingerprint(tmp_path)
    assert first.place == second.place == Path("out/P1/sweep")
