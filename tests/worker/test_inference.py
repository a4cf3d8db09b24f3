from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.errors import PacelineError
from paceline.trained import Trained, load_model
from paceline.worker import inference, model
from paceline.worker.inference import check_compiled
from tests.saved_runs import save_run


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trained:
    """A run whose model is compiled by a backend that takes no time; the real one is tried in tests/integration."""
    monkeypatch.setattr(inference, "BACKEND", "eager")
    torch.compiler.reset()
    save_run(tmp_path / "run", "evaluate.block=64", best=3)
    return load_model(tmp_path / "run")


class Shifted:
    """A workload whose predictions are others from the second call on: what is compiled comes first."""

    def __init__(self, workload: Any, gap: float) -> None:
        self._workload, self._gap, self._calls = workload, gap, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def predict(self, model: torch.nn.Module, batch: Any) -> Mapping[str, torch.Tensor]:
        self._calls += 1
        scores = torch.linspace(1, 2, len(batch["items"]))
        is_first = self._calls <= 2  # 153 samples: two whole blocks of 64
        return {"score": scores + (self._gap if is_first else 0.0)}


def test_outputs_are_compared_and_both_are_measured(trained: Trained) -> None:
    found = check_compiled(trained)
    assert (found["equal"], found["max_difference"], found["share_different"]) == (True, 0.0, 0.0)
    assert found["eager_ms"] > 0
    assert found["speed_up"] == pytest.approx(found["eager_ms"] / found["compiled_ms"] - 1)
    assert found["compared"] == "128 samples of test, rank"
    assert re.fullmatch(r"median of \d+ blocks of 64 samples, in turn, on cpu in fp32", found["measured"])
    assert json.loads(json.dumps(found)) == found


def test_only_what_the_model_computes_is_compiled_where_predictions_are_more(trained: Trained) -> None:
    class Evaluated(Shifted):
        def infer(self, model: torch.nn.Module, batch: Any) -> Mapping[str, torch.Tensor]:
            return {"own": torch.linspace(1, 2, len(batch["items"]))}

    found = check_compiled(dataclasses.replace(trained, workload=Evaluated(trained.workload, 1.0)))
    assert found["equal"]
    assert found["compared"] == "128 samples of test, own"


@pytest.mark.parametrize(("gap", "is_equal"), [(1e-5, True), (1e-2, False), (float("nan"), False)])
def test_the_tolerance_is_what_it_says(trained: Trained, gap: float, is_equal: bool) -> None:
    found = check_compiled(dataclasses.replace(trained, workload=Shifted(trained.workload, gap)))
    assert found["equal"] is is_equal
    assert "numbers to 0.0001, relative" in found["tolerance"]


def test_a_model_that_cannot_be_compiled(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "BACKEND", lambda *_: (_ for _ in ()).throw(RuntimeError("no compiler here")))
    with pytest.raises(PacelineError, match="cannot be compiled") as caught:
        check_compiled(trained)
    assert "the export itself is whole" in caught.value.problems[0].do


def test_one_line_of_json(
    trained: Trained, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "die_with_agent", lambda: None)
    monkeypatch.setattr(inference, "check_compiled", lambda loaded: {"equal": True, "step": loaded.step})
    assert model.main(["compiled", str(trained.root)]) == 0
    assert json.loads(capsys.readouterr().out) == {"equal": True, "step": 3}


@pytest.mark.parametrize(("lengths", "dynamic"), [((8, 8), False), ((8, 9), True)])
def test_blocks_of_one_shape_are_compiled_for_it(lengths: tuple[int, ...], dynamic: bool) -> None:
    batches = [{"items": torch.zeros(4, length), "note": "no tensor"} for length in lengths]
    assert inference._choose_dynamic(batches, torch.device("cpu"))[0] is dynamic
