"""Precision, backend, attention: what runs, and why."""

from __future__ import annotations

import pytest
import torch

from paceline.engine.effects import find_ineffective
from paceline.engine.precision import build_precision, choose_precision
from paceline.engine.ranks import choose_backend
from paceline.errors import ConfigError
from paceline.files import read_records
from paceline.telemetry.events import EventLog


@pytest.mark.parametrize(
    ("capability", "mode"), [((7, 0), "fp16"), ((7, 5), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16"), ((12, 0), "bf16")]
)
def test_auto_precision_follows_the_compute_capability(monkeypatch, capability, mode):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    effective, reason = choose_precision("auto", torch.device("cuda", 0))
    assert effective == mode
    assert f"{capability[0]}.{capability[1]}" in reason


def test_precision_is_recorded_as_requested_and_effective(tmp_path):
    events = EventLog(tmp_path / "events.jsonl", "rank 0", 1)
    assert build_precision("auto", True, torch.device("cpu"), events).name == "fp32"
    precision = build_precision("bf16", True, torch.device("cpu"), events)
    with precision.autocast():
        assert torch.ones(2, 2).mm(torch.ones(2, 2)).dtype == torch.bfloat16
    first, second = read_records(tmp_path / "events.jsonl")
    assert (first["requested"], first["effective"]) == ("auto", "fp32")
    assert "no GPU" in first["reason"]
    assert (second["requested"], second["effective"]) == ("bf16", "bf16")


def test_backends():
    assert choose_backend("auto", 1, 1, 1)[0] == "none"
    assert choose_backend("auto", 2, 2, 0)[0] == "gloo"
    assert choose_backend("auto", 2, 2, 2)[0] == "nccl"
    assert choose_backend("auto", 2, 2, 1)[0] == "gloo"
    assert choose_backend("nccl", 1, 1, 1)[0] == "nccl"
    with pytest.raises(ConfigError, match="2 ranks, 1 GPUs"):
        choose_backend("nccl", 2, 2, 1)


def test_what_has_no_effect_on_this_machine_is_found(make_context):
    given = {"parallel.compression", "precision.tf32", "parallel.check_every", "data.pin_memory"}
    sections = {"parallel": {"compression": "bf16"}, "data": {"num_workers": 1}}
    found = dict(find_ineffective(make_context(sections, given), "fp32"))
    assert set(found) == given
    assert "one rank" in found["parallel.compression"]
    many = make_context(sections, given, world_size=2, backend="gloo")
    assert set(dict(find_ineffective(many, "fp32"))) == {"precision.tf32", "data.pin_memory"}
