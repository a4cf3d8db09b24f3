from __future__ import annotations

import json
from pathlib import Path

from paceline.playbook.kinds.check import Check
from paceline.playbook.phase import Scene


def test_a_metric_that_is_not_defined_is_read_back(tmp_path: Path) -> None:
    phase = Check(kind="check", of="P2")
    work = phase.plan_work(Scene("P3", tmp_path, 1, "tenrec", {}, earlier={"P2": {"run": tmp_path / "run"}}))
    known = {"split": "test", "metric": "auc_click", "value": 0.75, "logged": 0.75, "equal": True}
    # An AUC without positives is NaN, which JSON has no word for.
    undefined = {"split": "test", "metric": "auc_share", "value": None, "logged": None, "equal": True}
    work.place.write_text(json.dumps({"rows": [known, undefined]}))
    outcome = phase.read(work)
    assert outcome.results["equal"] is True
    assert outcome.results["test.auc_share"] is None
    assert [row.value for row in outcome.evidence] == ["0.7500", "not finite"]
