from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from paceline.errors import ConfigError, UsageError
from paceline.files import write_json
from paceline.playbook.playbook import Playbook
from paceline.playbook.winner import check_uses, find_used

Written = Callable[..., Playbook]
BOOK = """
config: sasrec
phases:
  A: {kind: sweep, axes: {model.blocks: [1, 2], model.heads: [1, 2]}}
  B: {kind: sweep, use: A.top2}
  C: {kind: sweep, enabled: false, use: B.best, axes: {model.width: [16, 32]}}
  final: {kind: train, use: [C.best, B.best]}
"""


def best(folder: Path, recipe: str = "sasrec", **values: int) -> dict[str, Path]:
    folder.mkdir()
    file = folder / "best.yaml"
    file.write_text(yaml.safe_dump({"recipe": recipe, "model": values}))
    return {"best": file, "sweep": folder}


def test_the_first_that_is_there_counts(written: Written, tmp_path: Path) -> None:
    book = written(BOOK)
    b = best(tmp_path / "b", blocks=2, heads=1, width=64)
    used = find_used(book, "final", {"B": b})
    # What B had from A counts, what it never varied does not.
    assert (used.source, dict(used.values)) == ("B.best", {"model.blocks": 2, "model.heads": 1})
    c = best(tmp_path / "c", blocks=2, heads=1, width=32)
    used = find_used(book, "final", {"B": b, "C": c})
    assert dict(used.values) == {"model.width": 32, "model.blocks": 2, "model.heads": 1}


def test_the_leading_cases_and_the_baseline(written: Written, tmp_path: Path) -> None:
    links = best(tmp_path / "a", blocks=2, heads=1)
    cases = [
        {"name": f"blocks={n}", "values": {"model.blocks": n}, "rank": n, "verdict": "slower", "samples_per_s": speed}
        for n, speed in ((1, 30.0), (2, None), (3, 20.0), (4, 10.0))
    ]
    out = {"name": "blocks=5", "values": {"model.blocks": 5}, "rank": 2, "verdict": "diverges", "samples_per_s": 90.0}
    cases.append(out)
    record = {"cases": list(reversed(cases)), "trials": [], "winner": None, "best": "blocks=1", "baseline": "blocks=4"}
    record |= {"is_decided": False, "sentence": "", "costs": {"device_s": 1}, "objective": {"name": "throughput"}}
    write_json(tmp_path / "a" / "sweep.json", record)
    used = find_used(written(BOOK), "B", {"A": links})
    assert used.cases == [{"model.blocks": 1}, {"model.blocks": 3}, {"model.blocks": 4}]
    assert used.baseline == {"model.blocks": 4}


def test_a_winner_by_hand(written: Written, tmp_path: Path) -> None:
    given = best(tmp_path / "mine", blocks=7, heads=1)["best"]
    assert find_used(written(BOOK, f"B.best={given}"), "final", {}).values["model.blocks"] == 7
    by_keys = written(BOOK, "final.model.blocks=1", "model.heads=2")
    assert find_used(by_keys, "final", {}).source == ""
    with pytest.raises(UsageError, match=r"or type final\.model\.heads=…$"):
        find_used(written(BOOK, "final.model.blocks=1"), "final", {})
    with pytest.raises(UsageError, match="B has not been done here") as caught:
        find_used(written(BOOK), "final", {})
    assert "B.best=FILE" in caught.value.problems[0].do
    assert "final.model.blocks=… final.model.heads=…" in caught.value.problems[0].do


def test_what_is_typed_is_recorded_beside_what_was_found(written: Written, tmp_path: Path) -> None:
    book = written(BOOK, "final.model.blocks=9")
    used = find_used(book, "final", {"B": best(tmp_path / "b", blocks=2, heads=1)})
    assert book.settings("final", used.values) == {"model.blocks": 9, "model.heads": 1}
    records = used.to_record(book.by_hand("final"))
    assert [(each["key"], each["value"], each.get("by_hand")) for each in records] == [
        ("model.blocks", 2, 9),
        ("model.heads", 1, None),
    ]


def test_of_another_recipe_or_another_sweep(written: Written, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="of the recipe waves, and final trains sasrec"):
        find_used(written(BOOK), "final", {"B": best(tmp_path / "x", "waves", blocks=2, heads=1)})
    with pytest.raises(ConfigError, match=r"no value for model\.heads"):
        find_used(written(BOOK), "final", {"B": best(tmp_path / "y", blocks=2)})


def test_references_that_lead_nowhere(written: Written) -> None:
    found = check_uses(
        written(
            """
config: sasrec
phases:
  P0: {kind: train, use: P1.best}
  P1: {kind: train, use: P0.best}
  P2: {kind: train, use: best}
  P3: {kind: export, of: P2}
  P4: {kind: export, of: P3}
  P5: {kind: sweep, axes: {model.blocks: [1]}}
  P6: {kind: train, use: P5.top2}
"""
        )
    )
    assert [problem.what for problem in found] == [
        "P0 uses P1.best, and no earlier phase is called P1",
        "P1 uses P0.best, and P0 is of kind train",
        "P2 uses 'best', which means nothing",
        "P4 is of P3, which is no earlier phase that trains",
        "P6 uses P5.top2; only a sweep can run several cases",
    ]
