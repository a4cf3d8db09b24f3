"""On one NVIDIA GPU of 8.0 or later: each backend of SDPA forced, and a profile that shows it; with graphs, and in deterministic mode."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from paceline.engine.attend import attend_by_sdpa
from paceline.engine.backends import BACKENDS, allow_only, build_states, find_refusals, find_selected, restricted
from paceline.engine.build import build_trainer
from paceline.engine.kernels import find_attention
from paceline.engine.promise import check_promise
from paceline.files import read_records
from paceline.recipes.sasrec.config import SasrecConfig
from paceline.recipes.sasrec.workload import SasrecWorkload
from paceline.telemetry.reader import Run
from paceline.workload import AttentionCall
from tests.engine.conftest import build_context
from tests.gpu.test_cuda import assert_close, effective, losses, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0), reason="a GPU below 8.0"
    ),
]
CALL = AttentionCall("training", rows=16, heads=2, queries=200, keys=200, width=64, is_causal=True)
WIDE = ("model.width=128", "model.heads=2")
"""Heads of 64, which every backend takes."""


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    with restricted(tuple(BACKENDS)):
        yield


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """fp32 on the CPU of the same machine."""
    return train(tmp_path_factory.mktemp("cpu"), 1, *WIDE, "launch.gpus=[]")


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def device() -> torch.device:
    return torch.device("cuda", 0)


def seen_in(profiler: profile) -> list:
    return find_attention((row.key, row.count, row.self_device_time_total / 1e3) for row in profiler.key_averages())


def profile_one(call: AttentionCall, dtype: torch.dtype) -> set[str]:
    query, key, value, _ = build_states(call, dtype, device())
    with torch.no_grad():
        for state in (query, key, value):
            state.normal_()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        mixed = attend_by_sdpa(query, key, value, is_causal=True, dropout=call.dropout)
        torch.autograd.grad(mixed, (query, key, value), torch.ones_like(mixed))
        torch.cuda.synchronize()
    return {each.backend for each in seen_in(profiler)}


@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize("name", list(BACKENDS))
def test_a_forced_backend_is_the_one_that_runs(name: str, dropout: float) -> None:
    call = dataclasses.replace(CALL, dropout=dropout)
    refusals = find_refusals(call, torch.bfloat16, device())
    if dropout and name == "cudnn" and name in refusals:
        pytest.skip(refusals[name])  # some versions of cuDNN drop nothing
    assert name not in refusals
    allow_only((name,))
    assert find_selected(call, torch.bfloat16, device(), (name,)) == name
    assert profile_one(call, torch.bfloat16) == {name}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_what_torch_says_it_selects_is_what_runs(dtype: torch.dtype) -> None:
    assert profile_one(CALL, dtype) == {find_selected(CALL, dtype, device())}
    refusals = find_refusals(CALL, dtype, device())
    assert ("flash" in refusals) == ("cudnn" in refusals) == (dtype == torch.float32)
    if dtype == torch.float32:
        assert "dtype" in refusals["flash"], "torch's own reason"


def test_reasons_are_torchs_own() -> None:
    masked = find_refusals(dataclasses.replace(CALL, is_causal=False, mask="boolean"), torch.bfloat16, device())
    assert "mask" in masked["flash"].lower()
    wide = find_refusals(dataclasses.replace(CALL, width=512), torch.bfloat16, device())
    assert "256" in wide["flash"]
    with deterministic():
        assert "not deterministic" in find_refusals(CALL, torch.bfloat16, device())["cudnn"]
        assert find_selected(CALL, torch.bfloat16, device()) != "cudnn"


@pytest.mark.parametrize(
    ("options", "backend"),
    [
        (("attention.impl=flash",), "flash"),
        (("attention.impl=cudnn",), "cudnn"),
        (("attention.exclude=[flash,cudnn]",), "efficient"),
        (("attention.exclude=[flash,cudnn,efficient]",), "math"),
        (("attention.impl=eager",), "eager"),
        (("attention.impl=flex",), "flex"),
    ],
)
def test_a_run_keeps_to_what_was_asked_and_graphs_still_work(tmp_path, reference, options, backend) -> None:
    run = train(tmp_path / "run", 1, *WIDE, *options, "attention.fallback=error")
    choices = effective(run)
    assert choices["attention.backend"] == backend
    if backend != "flex":  # what torch.compile made may not be recordable; that is told, and trains as well
        assert choices["train.graph"] is True
    assert_close(run, reference, 0.03)


@pytest.mark.parametrize(("attention", "backend"), [({"impl": "flash"}, "flash"), ({"impl": "cudnn"}, "cudnn"), ({"exclude": ["flash", "cudnn"]}, "efficient")])  # fmt: skip
def test_the_kernels_of_a_replayed_training_are_those_promised(tmp_path: Path, attention: dict, backend: str) -> None:
    sections = {
        "data": {"users": 200, "items": 60, "events_per_user": 20, "max_length": 32},
        "model": {"width": 128, "heads": 2, "blocks": 1},
        "attention": attention,
        "train": {"max_steps": 20, "global_batch": 50, "graph": True},
        "evaluate": {"every_epochs": None},
        "checkpoint": {"enabled": False},
        "telemetry": {"tensorboard": False},
    }
    config = SasrecConfig.model_validate({"recipe": "sasrec", **sections})
    context = dataclasses.replace(build_context(tmp_path, device=device()), config=config)
    trainer = build_trainer(context, SasrecWorkload(config))
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        trainer.run()
        torch.cuda.synchronize()
    trainer.close()
    seen = seen_in(profiler)
    choices = {event["about"]: event for event in read_records(context.layout.events) if event["kind"] == "choice"}
    assert choices["attention.backend"]["effective"] == backend
    assert check_promise(backend, seen) == ""
    (only,) = [each for each in seen if each.backend == backend]
    assert only.count >= 20, "a kernel in every step"


@pytest.mark.parametrize(
    "options", [("attention.impl=flash",), ("attention.exclude=[flash,cudnn]",), ("attention.impl=eager",)]
)
def test_deterministic_runs_repeat_bit_by_bit_with_each_backend(tmp_path, options) -> None:
    common = ("run.deterministic=true", "model.attention_dropout=0.1", "model.dropout=0.1", *WIDE, *options)
    first, again = (train(tmp_path / name, 1, *common) for name in "ab")
    assert losses(first) == losses(again)


def test_what_is_not_deterministic_is_excluded_with_the_reason(tmp_path) -> None:
    run = train(tmp_path / "run", 1, "run.deterministic=true", "attention.impl=cudnn", *WIDE)
    (choice,) = [event for event in run.events_of("choice") if event["about"] == "attention.impl"]
    assert choice["effective"] == "sdpa"
    assert "not deterministic" in choice["reason"]
    assert effective(run)["attention.backend"] != "cudnn"


def test_the_bench_profiles_and_times_all_of_them() -> None:
    words = ["data.users=200", "data.max_length=64", *WIDE, "--repeats", "3", "--json"]
    command = [sys.executable, "-m", "paceline", "bench", "attention", "sasrec", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    training, evaluation = json.loads(done.stdout.splitlines()[-1])["calls"]
    rows = {row["kernel"]: row for row in training["kernels"]}
    assert {name for name, row in rows.items() if not row["refused"]} == {*BACKENDS, "eager", "flex"}
    for name, row in rows.items():
        assert row["ran"] == [name], (name, row["names"])
        assert row["forward_ms"]["median"] > 0
        assert row["backward_ms"]["median"] > 0
    assert evaluation["selected"] == training["selected"]
