"""The recipe as the engine sees it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.engine.kernels import OWN, attention_backend_of
from paceline.errors import ConfigError, UsageError
from paceline.recipes.job import load_job
from paceline.recipes.nsa import paths
from paceline.recipes.nsa import workload as workload_module
from paceline.recipes.nsa.config import Model
from paceline.recipes.nsa.flops import mean_keys
from paceline.recipes.nsa.gates import BRANCHES
from paceline.recipes.nsa.model import LanguageModel
from paceline.recipes.nsa.sampling import COLDEST, draw_token
from paceline.recipes.nsa.workload import NsaWorkload
from paceline.workload import Attends, Chooses, Draw, Samples, Setting, check_workload
from tests.recipes.nsa.gpus import pretend_gpu

SMALL = {"data.documents": 60, "data.length": 64, "model.width": 16, "model.layers": 1, "model.head_width": 8}
CPU = Setting(torch.device("cpu"), "sdpa")


def build(*overrides: str) -> NsaWorkload:
    given = SMALL | dict(word.split("=") for word in overrides)
    workload = NsaWorkload(load_job("nsa", [f"{key}={value}" for key, value in given.items()], environ={}).config)
    assert isinstance(check_workload(workload, "nsa"), Attends)
    assert isinstance(workload, Chooses)
    assert isinstance(workload, Samples)
    return workload


def build_model(workload: NsaWorkload) -> LanguageModel:
    torch.manual_seed(0)
    return workload.build_model(CPU)


def test_every_branch_says_what_computes_it() -> None:
    said = {choice.about: (choice.effective, choice.reason) for choice in build().choices(CPU)}
    assert said["model.sparse"] == ("sparse", "as requested")
    why = "its kernels are for GPUs, and there is none here"
    assert said["model.sparse_path"] == ("torch", why)
    assert said["attention.compress"] == ("compression.compress", why)
    assert said["attention.select"] == ("torch_path.select", why)
    for branch in ("compressed", "selected", "window"):
        assert said[f"attention.{branch}"] == (f"torch_path.attend_{branch}", why)
    (*_, by_reference) = build("model.sparse_path=reference").choices(CPU)
    assert by_reference.effective == "reference.attend"
    dense = build("model.sparse=never").choices(CPU)
    assert [(choice.about, choice.effective) for choice in dense] == [("model.sparse", "dense")]


def test_a_training_by_kernels_is_refused_on_a_cpu_and_what_they_trained_is_read_there() -> None:
    workload = build("model.sparse_path=fast", "model.head_width=64")
    with pytest.raises(ConfigError, match="cannot be served here"):
        workload.choices(CPU)
    assert workload.sample(build_model(workload), "The ", tokens=2, temperature=0, top=None, seed=0).num_tokens


def test_what_the_reference_trained_is_sampled_with_caches() -> None:
    written = []
    for path in ("reference", "torch"):
        torch.manual_seed(0)
        workload = build(f"model.sparse_path={path}")
        written.append(workload.sample(build_model(workload), "The ", tokens=3, temperature=0, top=None, seed=0).text)
    assert written[0] == written[1]


def test_parameters_are_counted_by_part() -> None:
    workload = build()
    total = sum(parameter.numel() for parameter in build_model(workload).parameters())
    told = workload.details()["parameters_by_part"]
    assert told.startswith(f"{total:,}: embedding ")
    assert "compression" in told
    assert "compression" not in build("model.sparse=never").details()["parameters_by_part"]


def test_the_audit_hears_of_each_branch() -> None:
    calls = build().attention_calls("cpu", micro_batch=4, block=2)
    assert [(call.phase, call.keys) for call in calls[:3]] == [("training", 16), ("training", 64), ("training", 64)]
    assert [(call.name, call.own) for call in calls[:3]] == [(branch, "torch") for branch in BRANCHES]
    assert all("model.sparse_path decides" in call.why for call in calls)
    assert str(calls[3]) == "evaluation: compressed: 2 rows × 4 heads, 64 × 16, width 8, boolean mask"
    (training, _) = build("model.sparse=never").attention_calls("cpu", micro_batch=4, block=2)
    assert (training.rows, training.keys, training.mask, training.is_causal) == (4, 64, "boolean", False)
    (training, _) = build("model.sparse=never", "data.source=synthetic").attention_calls("cpu", 4, 2)
    assert (training.mask, training.is_causal) == ("none", True)


def test_the_audit_hears_of_the_kernels_of_each_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch)
    workload = build("model.head_width=64")
    calls = workload.attention_calls("cuda", micro_batch=4, block=2)
    own = {call.name: call.own for call in calls}
    assert own == {"compressed": "nsa_range", "selected": "nsa_chosen", "window": "nsa_range"}
    assert set(own.values()) < set(OWN), "a profile knows them by name"
    by_reference = build("model.head_width=64", "model.sparse_path=reference").attention_calls("cuda", 4, 2)
    assert {call.own for call in by_reference} == {"torch"}


def test_kernels_are_named_as_the_audit_knows_them() -> None:
    """Read as text: importing them needs Triton."""
    folder = Path(paths.__file__).parent / "kernels"
    for beginning in OWN:
        source = (folder / f"{beginning.removeprefix('nsa_')}_kernels.py").read_text()
        names = re.findall(r"^def (\w+_kernel)\(", source, re.MULTILINE)
        assert names
        assert all(attention_backend_of(name) == beginning for name in names)


@pytest.mark.parametrize("attention", ["always", "never"])
def test_losses_weigh_their_labels_and_metrics_agree(attention: str) -> None:
    workload = build(f"model.sparse={attention}")
    model = build_model(workload)
    ids = list(range(5))
    batch = workload.train_set().fetch(ids, Draw(0, 0))
    total, weight = workload.loss(model, batch)
    assert weight == (batch["labels"] != -100).sum()
    parts = [workload.loss(model, workload.train_set().fetch([one], Draw(0, 0))) for one in ids]
    torch.testing.assert_close(sum(part for part, _ in parts), total)
    outputs = {name: values.detach().numpy() for name, values in workload.predict(model, batch).items()}
    metrics = workload.metrics("validation", outputs)
    assert metrics["loss"] == pytest.approx((total / weight).item(), rel=1e-5)
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
    assert 0 <= metrics["accuracy"] <= 1


def test_a_split_without_labels_is_no_division_by_zero() -> None:
    outputs = {name: np.zeros(3) for name in ("loss", "labels", "right")}
    assert build().metrics("validation", outputs) == {"loss": 0.0, "perplexity": 1.0, "accuracy": 0.0}


def test_sparse_attention_costs_less_than_dense_where_rows_are_long() -> None:
    def flops(attention: str) -> float:
        workload = build(f"model.sparse={attention}", "data.source=synthetic", "data.length=4096", "data.samples=4")
        return workload.step_flops(1)

    assert flops("always") < flops("never")


def test_flops_of_the_dense_twin_by_hand() -> None:
    workload = build("model.sparse=never", "data.source=synthetic", "data.vocabulary=100", "model.feed_forward=24")
    weights = 16 * 32 + 2 * 16 * 16 + 32 * 16 + 3 * 16 * 24
    assert workload.step_flops(10) == 10 * 6 * (weights + 2 * 32 * 65 / 2 + 16 * 100)


def test_keys_of_a_small_pattern_by_hand() -> None:
    """14 queries. Of its own block a query sees what is behind it; with 12, the first block that is not selected comes."""
    model = Model(block=4, stride=2, selection_block=4, selected=3, window=3)
    compressed = [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6]
    selected = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 4 + 4 + 1, 4 + 4 + 2]
    window = [1, 2, *[3] * 12]
    assert mean_keys(model, 14) == sum(compressed + selected + window) / 14


def test_selected_keys_where_rows_are_long() -> None:
    """Almost always 15 whole blocks and half of the query's own; a row's first queries have less to look at."""
    model = Model(block=65_536, window=1)
    assert mean_keys(model, 65_536) * 65_536 - 65_536 - 1 == pytest.approx(985.0 * 65_536, rel=1e-3)


def test_it_writes() -> None:
    workload = build()
    model = build_model(workload).eval()
    settings = {"tokens": 20, "temperature": 1.0, "top": 50, "seed": 3}
    first, again = (workload.sample(model, "The ", **settings) for _ in range(2))
    assert first == again
    assert (first.num_prompt, first.prompt) == (4, "The ")
    assert 0 < first.num_tokens <= 20
    assert first.bytes_per_token > 0
    assert workload.sample(model, "The ", **settings | {"seed": 4}).text != first.text
    greedy = [workload.sample(model, "The ", **settings | {"temperature": 0, "seed": seed}).text for seed in (1, 2)]
    assert greedy[0] == greedy[1]
    assert "more than the 64" in workload.sample(model, "long " * 13, **settings).note
    with pytest.raises(UsageError, match="prompt is empty"):
        workload.sample(model, "", **settings)


def test_a_prompt_that_is_no_text_is_refused() -> None:
    """What a shell gives for bytes that are not UTF-8."""
    workload = build()
    with pytest.raises(UsageError, match="not UTF-8") as caught:
        workload.sample(build_model(workload), "The \udcff", tokens=1, temperature=1.0, top=None, seed=0)
    (problem,) = caught.value.problems
    assert (problem.where, bool(problem.do)) == ("--prompt", True)


@pytest.mark.parametrize("temperature", [math.nan, math.inf, -1.0, 1e-310])
def test_a_temperature_that_leaves_nothing_to_draw_from_is_refused(temperature: float) -> None:
    workload = build()
    with pytest.raises(UsageError, match=f"temperature {temperature:g}") as caught:
        workload.sample(build_model(workload), "The ", tokens=1, temperature=temperature, top=None, seed=0)
    (problem,) = caught.value.problems
    assert (problem.where, bool(problem.do)) == ("--temperature", True)


@pytest.mark.parametrize("top", [None, 5])
@pytest.mark.parametrize("temperature", [COLDEST, 1e300])
def test_any_other_temperature_draws(temperature: float, top: int | None) -> None:
    logits = torch.tensor([-3e38, 0.0, 3e38, 2.9e38] * 3)
    assert 0 <= draw_token(logits, temperature, top, torch.Generator().manual_seed(0)) < 12


def test_random_tokens_are_no_text() -> None:
    workload = build("data.source=synthetic")
    with pytest.raises(UsageError, match="knows no text"):
        workload.sample(build_model(workload), "The ", tokens=1, temperature=0, top=None, seed=0)


def test_more_rows_than_kernels_can_be_launched_for_are_refused_before_the_first_step(monkeypatch) -> None:
    pretend_gpu(monkeypatch)
    settled = []
    monkeypatch.setattr(workload_module, "settle_tiles", lambda *given: settled.append(given) or {})
    monkeypatch.setattr(workload_module, "find_shared", lambda device: 101_376)
    monkeypatch.setattr(workload_module, "has_hopper", lambda device: False)
    gpu = Setting(torch.device("cuda", 0), "own", precision="bf16")

    def settle(micro_batch: int, *more: str) -> None:
        sizes = (
            "model.head_width=64",
            "model.heads=4096",
            "model.groups=256",
            "data.documents=64",
            "model.tiles=tune",
            *more,
        )
        build(*sizes).settle(replace(gpu, micro_batch=micro_batch), {})

    settle(15, "evaluate.block=1")
    assert len(settled) == 1
    with pytest.raises(ConfigError) as refused:
        settle(16, "evaluate.block=16")
    training, evaluation = refused.value.problems
    assert training.what.startswith("16 samples at once in training × model.heads=4096 = 65,536, and ")
    assert training.where == "train.micro_batch and model.heads"
    assert training.do == "set train.micro_batch=15 or less, or model.sparse_path=torch"
    assert evaluation.where == "evaluate.block and model.heads"
    assert len(settled) == 1, "before anything is tuned"
    build("model.heads=4096", "model.groups=256").settle(replace(CPU, micro_batch=16), {})
    assert len(settled) == 1, "plain torch takes as many as there is memory for"
