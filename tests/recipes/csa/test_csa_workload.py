"""The recipe as the engine sees it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.engine.promise import write_promise
from paceline.recipes.csa.flops import count_flops, layer_flops, speech_flops
from paceline.recipes.csa.speech import speech_config
from paceline.recipes.csa.text import text_config
from paceline.workload import Attends, Contrasts, Draw, Measured, check_workload
from tests.recipes.csa.aligners import build, build_model, whole_loss


def test_it_is_what_the_engine_asks_for() -> None:
    workload = check_workload(build(), "csa")
    assert isinstance(workload, Contrasts)
    assert isinstance(workload, Attends)
    assert isinstance(workload.train_set(), Measured)
    for given in ("data.bucket=false", "data.crop=fixed"):
        assert not isinstance(build(given).train_set(), Measured)


def test_one_batch_embedded_in_parts_is_the_same_loss() -> None:
    workload = build()
    model = build_model(workload)
    samples, draw = workload.train_set(), Draw(0, 0)
    ids = [3, 0, 7, 11, 5, 9]
    total, weight = whole_loss(workload, model, samples.fetch(ids, draw))
    parts = [workload.embed(model, samples.fetch(part, draw)) for part in (ids[:1], ids[1:4], ids[4:])]
    found, _ = workload.contrast(torch.cat([part.rows for part in parts]), parts[0].shared)
    assert weight == len(ids)
    torch.testing.assert_close(found, total, rtol=1e-5, atol=0)


def test_metrics_of_what_is_predicted() -> None:
    workload = build("evaluate.train_pairs=9")
    assert workload.splits == ("validation", "train")
    assert len(workload.evaluation_set("train")) == 9
    model = build_model(workload).eval()
    samples = workload.evaluation_set("validation")
    with torch.no_grad():
        outputs = workload.predict(model, samples.fetch(range(len(samples)), Draw(0, 0)))
    found = workload.metrics("validation", {name: value.numpy() for name, value in outputs.items()})
    assert set(found) == set(workload.metric_names)
    name, chance = workload.baseline("validation", len(samples))
    assert (name, chance["recall_1"]) == ("chance", 1 / len(samples))


def test_units_are_seconds_of_speech() -> None:
    workload = build("data.crop=whole")
    batch = workload.train_set().fetch(range(10), Draw(0, 0))
    assert workload.units(range(10)) == round(int(batch["samples"].sum()) / 16_000)
    assert workload.unit == "audio seconds"


def test_padding_is_counted_in_training_alone_and_once_in_two_passes() -> None:
    workload = build()
    model, batch = build_model(workload), workload.train_set().fetch(range(5), Draw(0, 0))
    workload.embed(model.eval(), batch)
    with torch.no_grad():
        workload.embed(model.train(), batch)
    assert set(workload.observe(model)) == {"temperature"}
    workload.embed(model, batch)
    workload.embed(model, batch)
    share = 1 - int(batch["samples"].sum()) / batch["audio"].numel()
    assert share > 0
    assert workload.observe(model)["padding_share"] == pytest.approx(share)
    assert set(workload.observe(model)) == {"temperature"}, "since it was last asked"


def test_the_largest_attention_of_each_encoder() -> None:
    speech, text, *evaluated = build("data.crop=fixed").attention_calls("cpu", 8, 4)
    frames = 32_000 // 320
    assert (speech.rows, speech.heads, speech.queries, speech.width, speech.mask) == (8, 4, frames, 16, "boolean")
    assert (text.rows, text.keys) == (8, text.queries)
    assert [call.rows for call in evaluated] == [4, 4]
    assert tuple(speech.kernels) == ("eager", "sdpa")
    assert "transformers" in speech.why
    assert [call.name for call in (speech, text, *evaluated)] == ["speech", "text"] * 2
    told = write_promise(zip((speech, text), ("efficient", "flash"), strict=True))
    assert told == "speech efficient, text flash", "neither hides the other"


def test_attention_has_the_dropout_of_its_encoder() -> None:
    def dropouts(*overrides: str) -> list[tuple[str, str, float]]:
        calls = build("model.dropout=0.2", *overrides).attention_calls("cpu", 8, 4)
        return [(call.phase, call.name, call.dropout) for call in calls]

    evaluated = [("evaluation", "speech", 0.0), ("evaluation", "text", 0.0)]
    assert dropouts() == [("training", "speech", 0.2), ("training", "text", 0.2), *evaluated]
    frozen = dropouts("model.freeze_text=true")
    assert frozen == [("training", "speech", 0.2), ("training", "text", 0.0), *evaluated]


def test_attention_by_both_kernels_is_the_same() -> None:
    workload = build()
    batch = workload.train_set().fetch(range(4), Draw(0, 0))
    from paceline.workload import Setting

    rows = []
    for kernel in ("eager", "sdpa"):
        torch.manual_seed(0)
        model = workload.build_model(Setting(torch.device("cpu"), kernel)).eval()
        rows.append(model(batch)[0])
    torch.testing.assert_close(*rows, rtol=0, atol=1e-5)


def test_flops_by_hand() -> None:
    config = speech_config("small", None)
    lengths = [3_999, 799, 199, 98]  # of 32,000 samples, after each layer
    sizes = zip((1, 16, 32, 64), (16, 32, 64, 64), (16, 8, 4, 4), lengths, strict=True)
    conv = sum(2 * narrow * wide * kernel * length for narrow, wide, kernel, length in sizes)
    positions = 2 * 98 * 64 * 16 * 16
    layers = 2 * 98 * (2 * (4 * 64**2 + 2 * 64 * 128) + 4 * 98 * 64)
    assert speech_flops(config, 32_000) == conv + 2 * 98 * 64 * 64 + positions + layers
    text = text_config("small", None)
    trained, frozen = (count_flops(config, text, 2.0, 30, is_frozen) for is_frozen in (False, True))
    assert trained * 2 == pytest.approx(3 * speech_flops(config, 32_000) + 3 * layer_flops(text, 30))
    assert (trained - frozen) * 2 == pytest.approx(2 * layer_flops(text, 30))


def test_details_and_flops_of_a_step() -> None:
    workload = build()
    details = workload.details()
    assert details["source"] == "generated tones"
    assert 1 < details["seconds_per_pair"] < 3
    assert workload.step_flops(10) == pytest.approx(10 * workload.step_flops(1))
    assert np.isfinite(workload.step_flops(1))


def test_a_tenth_of_a_second_is_heard() -> None:
    workload = build("data.min_seconds=0.01", "data.max_seconds=0.1")
    model = build_model(workload)
    loss, _ = whole_loss(workload, model, workload.train_set().fetch(range(6), Draw(0, 0)))
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
