"""`paceline bench nsa`: every stage is timed, the sum is theirs, and the break-even is where sparse attention stays the faster one."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from paceline.bench import nsa, nsa_tiles
from paceline.cli import asking
from paceline.cli.main import run_command
from paceline.errors import UsageError
from paceline.recipes.nsa.config import Model
from paceline.workload import AttentionCall
from tests.recipes.nsa.gpus import pretend_gpu
from tests.recipes.nsa.kernels.tuned import make_tuned


def row(length: int, ours: float, dense: float) -> dict:
    times = {name: {"forward_ms": ours / 2, "backward_ms": ours / 2} for name in (*nsa.STAGES, "sparse", "layer")}
    times |= {name: {"forward_ms": dense, "backward_ms": 0.0} for name in ("flash", "layer_flash")}
    decoding = {
        "refused": None,
        "backend": "flash",
        "attention": 9.25,
        "attention_dense": 1234.5,
        "model_launched": 3.0,
    }
    return {"length": length, "refused": None, "dense_refused": {}, "times": times, "decoding": {"1": decoding}}


def test_each_stage_is_timed() -> None:
    measured = nsa.measure([70], heads=2, groups=1, width=16, repeats=1, decodes=True)
    (found,) = measured["rows"]
    for stage in nsa.STAGES:
        assert found["times"][stage]["forward_ms"] > 0
        assert (found["times"][stage]["backward_ms"] > 0) == (stage != "select")
    total = sum(found["times"][stage]["forward_ms"] for stage in nsa.STAGES)
    assert found["times"]["sparse"]["forward_ms"] == pytest.approx(total)
    assert found["times"]["layer"]["backward_ms"] > 0
    assert found["times"]["layer_flash"]["backward_ms"] > 0
    assert measured["path"] in ("torch", "fast")
    for decoding in found["decoding"].values():
        assert not decoding["refused"]
        for what in ("attention", "attention_dense", "model", "model_dense"):
            assert decoding[f"{what}_launched"] > 0


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ([(8, 2, 1), (16, 2, 2), (32, 2, 4), (64, 2, 8)], 32),
        ([(8, 1, 2), (16, 3, 2), (32, 2, 4)], 32),  # a lucky short length is no break-even
        ([(8, 2, 1), (16, 3, 2)], None),
        ([(8, 1, 2)], 8),
    ],
)
def test_the_break_even(figures: list[tuple[int, float, float]], expected: int | None) -> None:
    rows = [row(*each) for each in figures]
    assert nsa.find_break_even(rows, "flash") == expected
    rows.append({"length": 128, "refused": "no memory", "times": {}})
    assert nsa.find_break_even(rows, "flash") == expected


def test_a_backend_that_is_not_to_be_had_says_so_and_the_rest_is_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As flash before compute capability 8.0, and cuDNN with heads of 20, or with a single query."""

    def refuse(call: AttentionCall, dtype: torch.dtype, device: torch.device) -> dict[str, str]:
        return dict.fromkeys(("flash", "cudnn", "math"), "too short") if call.queries < refused_below else {}

    monkeypatch.setattr(nsa, "find_refusals", refuse)
    monkeypatch.setattr(asking, "ask_worker", lambda arguments: measured)
    refused_below = 50
    measured = nsa.measure([40, 60], heads=2, groups=1, width=16, repeats=1, decodes=False)
    assert run_command(["bench", "nsa"]) == 0
    shown = capsys.readouterr().out
    assert "not to be had, dense, flash, at 40: too short" in shown
    (dense,) = (line for line in shown.splitlines() if "layer, dense, flash " in line)
    assert " - " in dense, "the longer row has its figures"
    refused_below = 70
    measured = nsa.measure([40, 60], heads=2, groups=1, width=16, repeats=1, decodes=False)
    assert not measured["break_even"]
    assert all(row["times"]["layer"]["forward_ms"] > 0 for row in measured["rows"])
    assert run_command(["bench", "nsa"]) == 0
    shown = capsys.readouterr().out
    assert "at 40, 60: too short" in shown
    assert "layer, sparse" in shown
    assert "layer, dense" not in shown


def test_a_row_that_a_cpu_has_no_memory_for_says_so() -> None:
    measured = nsa.measure([10**14], heads=2, groups=1, width=16, repeats=1, decodes=False)
    assert "allocate" in measured["rows"][0]["refused"]


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answer = {
        "device": "a GPU",
        "torch": "2",
        "path": "fast",
        "reason": "kernels",
        "heads": 12,
        "groups": 2,
        "width": 64,
    }
    answer |= {
        "rows": [
            row(8, 2, 1),
            {"length": 16, "refused": "full", "dense_refused": {}, "times": {}, "decoding": {"1": {"refused": "full"}}},
        ],
        "break_even": {"flash": None},
    }
    asked: list[list[str]] = []
    monkeypatch.setattr(asking, "ask_worker", lambda arguments: asked.append(arguments) or answer)
    assert run_command(["bench", "nsa", "--length", "8", "--length", "16", "--length", "8", "--decode"]) == 0
    shown = capsys.readouterr().out
    assert "no memory" in shown
    decoding = [
        line for line in shown.splitlines() if "attention, s" in line or "attention, d" in line or "model, " in line
    ]
    assert len(decoding) == 8
    assert "9.2" in decoding[0] or "9.3" in decoding[0]
    assert "1,234.5 flash" in decoding[2]
    assert "at none of these lengths" in shown
    assert asked[0][1:6] == ["--length", "8", "--length", "16", "--heads"], "each length once"
    assert asked[0][-1] == "--decode"
    assert run_command(["bench", "nsa", "--length", "8"]) == 0
    assert "model, " not in capsys.readouterr().out
    assert "--decode" not in asked[1]
    assert run_command(["bench", "nsa", "--decode", "--tune"]) == 2
    capsys.readouterr()
    run_command(["bench", "nsa", "--json"])
    assert json.loads(capsys.readouterr().out) == answer
    assert run_command(["bench", "nsa", "--heads", "5"]) == 2
    assert "cannot be shared out" in capsys.readouterr().err
    assert run_command(["bench", "nsa", "--width", "33"]) == 2
    assert "--width 34" in capsys.readouterr().err


@pytest.mark.parametrize("is_terminal", [True, False])
def test_figures_are_whole_on_a_narrow_terminal_and_a_stage_is_one_line_of_a_file(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(length, 1234.56, 98765.43) for length in nsa.LENGTHS["cuda"]]
    answer = {"device": "a GPU", "torch": "2", "path": "fast", "reason": "kernels", "break_even": {"flash": None}}
    answer |= {"heads": 12, "groups": 2, "width": 64, "rows": rows}
    monkeypatch.setattr(asking, "ask_worker", lambda arguments: answer)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    assert run_command(["bench", "nsa", "--decode"]) == 0
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert shown.count("98765.43") == 2 * len(rows)
    assert shown.count("131,072") == 2
    whole_lines = [line for line in shown.splitlines() if line.count("617.28 / 617.28") == len(rows)]
    assert bool(whole_lines) != is_terminal


def test_the_command_tunes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tuned = make_tuned(2)
    times = tuned.times | {"select": [(tile, None) for tile, _ in tuned.times["select"]]}
    answer = {"cases": [nsa_tiles.report(replace(tuned, times=times))]}
    asked: list[list[str]] = []
    monkeypatch.setattr(asking, "ask_worker", lambda arguments: asked.append(arguments) or answer)
    assert run_command(["bench", "nsa", "--tune", "--rows", "4", "--precision", "fp16", "--repeats", "3"]) == 0
    assert asked[0][0] == "paceline.bench.nsa_tiles"
    given = dict(zip(asked[0][1::2], asked[0][2::2], strict=True))
    assert given == {
        "--heads": "12",
        "--groups": "2",
        "--width": "64",
        "--repeats": "3",
        "--rows": "4",
        "--precision": "fp16",
    }
    shown = capsys.readouterr().out
    assert "a GPU, torch 2.11.0, Triton 3.6.0" in shown
    assert "4 × 8,192 tokens, 12 heads in 2 groups, 64 wide, bfloat16" in " ".join(shown.split())
    assert "no fit" in shown
    assert str(tmp_path) in shown
    tried = sum(len(tried) for tried in times.values())
    assert f"{tried - len(times['select'])} of {tried} candidates" in shown
    run_command(["bench", "nsa", "--tune", "--json"])
    assert json.loads(capsys.readouterr().out) == answer
    for words, why in ((["--rows", "2"], "for --tune"), (["--tune", "--precision", "fp32"], "no tiles to tune")):
        assert run_command(["bench", "nsa", *words]) == 2
        assert why in capsys.readouterr().err


def test_more_rows_than_a_gpu_launches_are_no_shape_to_tune(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(UsageError, match=r"--rows 5462 × --heads 12 = 65,544, and the kernels take 65,535") as caught:
        nsa_tiles.measure([], 5462, Model(), "bf16", 1)
    assert "--rows 5461" in caught.value.render()


@pytest.mark.parametrize("has_gpu", [False, True])
def test_there_is_nothing_to_tune_without_kernels(has_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: has_gpu)
    with pytest.raises(UsageError, match="there are no tiles to tune: its kernels") as caught:
        nsa_tiles.measure([], 1, Model(head_width=32), "bf16", 1)
    assert "with sizes that they take" in caught.value.render()
