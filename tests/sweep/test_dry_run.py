"""What a sweep would cost, in words for each way to run one; the ledger is read and left as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.errors import UsageError
from paceline.sweep.dry_run import describe_dry_run
from paceline.sweep.evidence import RaceSettings
from paceline.sweep.fingerprint import Surroundings
from paceline.sweep.ledger import Ledger, Order, read_rows
from paceline.sweep.matrix import build_matrix
from paceline.sweep.outcome import Sweep
from paceline.sweep.plan import load_plan


def sweep(root: Path, settings: RaceSettings, *words: str) -> Sweep:
    path = root / "plan.yaml"
    path.write_text("recipe: sasrec\nset: {launch.gpus: []}\naxes: {train.micro_batch: [1, 2, 3, 4, 5, 6, 7, 8]}\n")
    plan = load_plan(path, words)
    return Sweep(plan, build_matrix(plan), root / "s", Surroundings({}, {}, {}, {}), settings, "samples", [])


@pytest.mark.parametrize(
    ("settings", "words", "says"),
    [
        (RaceSettings(racing=False, repeats=2), (), ["grid: 16 trials of 8 cases (repeats=2)", "cost: 672 device"]),
        (RaceSettings(racing=False), (), ["24 to 240 trials", "auto: 3 to 30", "cost: 1,008 to 10,080 device", "240 trials of"]),
        (RaceSettings(), (), ["24 to 240 trials", "about 5 to 48 of them", "cost: 202 to 2,016 device", "(240 trials of"]),
        (RaceSettings(racing=False, repeats=2), ("search=random", "search_trials=5", "finalists=2"),
         ["8 cases\n  train.micro_batch: 1, 2, 3, 4, 5, 6, 7, 8\n  baseline: micro_batch=1\nsearch=random: 5 of the 8 cases are tried",
          "the 2 best are then raced", "finalists in full: 6 trials of 3 cases", "cost: 462 device", "(11 trials of"]),
        (RaceSettings(), ("search=random", "search_trials=99", "finalists=99"), ["8 of the 8 cases are tried", "the 7 best"]),
    ],
)  # fmt: skip
def test_each_way_to_run_it_has_its_words(
    tmp_path: Path, settings: RaceSettings, words: tuple[str, ...], says: list[str]
) -> None:
    text = "\n".join(describe_dry_run(sweep(tmp_path, replace(settings, steps=300), *words)))
    for part in says:
        assert part in text


def test_a_ledger_is_read_while_another_one_writes_and_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(path)
    ledger.claim(Order("a=1", 1, key="k", config="c", hardware="h", code="o", data="d", steps=10, warmup_steps=2))
    ledger._database.execute("BEGIN IMMEDIATE")
    assert [row.case for row in read_rows(path)] == ["a=1"]
    ledger._database.execute("ROLLBACK")
    ledger.close()
    path.write_bytes(b"")
    with pytest.raises(UsageError, match="cannot be read"):
        read_rows(path)
    path.unlink()
    with pytest.raises(UsageError, match="cannot be read"):
        read_rows(path)
    assert not path.exists()
