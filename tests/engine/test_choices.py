"""Precision and backend: what runs, and why."""

from __future__ import annotations

import pytest
import torch

from paceline.config.sections import Precision
from paceline.engine.effects import find_ineffective
from paceline.engine.powersgd import check_precision
from paceline.engine.precision import build_precision, choose_precision
from paceline.engine.ranks import Ranks, choose_backend, read_place
from paceline.errors import ConfigError, UsageError
from paceline.files import read_records


@pytest.mark.parametrize(
    ("capability", "mode"),
    [((7, 0), "fp16"), ((7, 5), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16"), ((12, 0), "bf16"), (None, "fp32")],
)
def test_auto_precision_follows_the_compute_capability(capability, mode):
    effective, reason = choose_precision("auto", capability)
    assert effective == mode
    assert ("no GPU" if capability is None else f"{capability[0]}.{capability[1]}") in reason


def test_precision_is_recorded_as_requested_and_effective(make_context):
    context = make_context()
    assert build_precision(Precision(), context.ranks, context.events).name == "fp32"
    precision = build_precision(Precision(mode="bf16"), context.ranks, context.events)
    with precision.autocast():
        assert torch.ones(2, 2).mm(torch.ones(2, 2)).dtype == torch.bfloat16
    first, second = read_records(context.layout.events)
    assert (first["requested"], first["effective"]) == ("auto", "fp32")
    assert "no GPU" in first["reason"]
    assert (second["requested"], second["effective"]) == ("bf16", "bf16")


def test_ranks_with_several_kinds_of_gpus_choose_for_the_oldest(make_context, monkeypatch):
    context = make_context()
    monkeypatch.setattr(Ranks, "gather_floats", lambda self, mine: torch.tensor([[8.0, 0.0], [7.0, 5.0]]))
    assert build_precision(Precision(), context.ranks, context.events).name == "fp16"


def test_backends():
    assert choose_backend("auto", 1, 1, 1)[0] == "none"
    assert choose_backend("auto", 2, 2, 0)[0] == "gloo"
    assert choose_backend("auto", 2, 2, 2)[0] == "nccl"
    assert choose_backend("auto", 2, 2, 1)[0] == "gloo"
    assert choose_backend("nccl", 1, 1, 1)[0] == "nccl"
    with pytest.raises(ConfigError, match="2 ranks, 1 GPUs"):
        choose_backend("nccl", 2, 2, 1)


def test_powersgd_is_refused_where_auto_comes_to_fp16():
    check_precision("powersgd", "bf16")
    check_precision("bf16", "fp16")
    with pytest.raises(ConfigError, match=r"precision\.mode=fp16"):
        check_precision("powersgd", "fp16")


def test_what_has_no_effect_on_this_machine_is_found(make_context):
    given = {"parallel.compression", "precision.tf32", "parallel.check_every", "data.pin_memory"}
    sections = {"parallel": {"compression": "bf16"}, "data": {"num_workers": 1}}
    found = dict(find_ineffective(make_context(sections, given)))
    assert set(found) == given
    assert "one rank" in found["parallel.compression"]
    many = make_context(sections, given, world_size=2, backend="gloo")
    assert set(dict(find_ineffective(many))) == {"precision.tf32", "data.pin_memory"}


def test_what_sharding_leaves_without_effect_is_found(make_context):
    given = {"parallel.zero_stage", "parallel.bucket_mb", "parallel.check_every"}
    for stage, ranks, expected in (
        (3, 1, given),
        (0, 1, {"parallel.bucket_mb", "parallel.check_every"}),
        (1, 2, set()),
        (2, 2, {"parallel.bucket_mb", "parallel.check_every"}),
    ):
        backend = "none" if ranks == 1 else "gloo"
        context = make_context({"parallel": {"zero_stage": stage}}, given, world_size=ranks, backend=backend)
        found = list(find_ineffective(context))
        assert {name for name, _ in found} == expected
        assert len(found) == len(expected), "each is said once"


def test_the_launchers_variables():
    assert read_place({}) == (0, 1, 0)
    assert read_place({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a"}) == (3, 4, 1)
    for bad in ({"RANK": "abc"}, {"RANK": "1"}, {"WORLD_SIZE": "2"}, {"RANK": "-1"}):
        with pytest.raises(UsageError, match=r"numbers|no rank|MASTER_ADDR"):
            read_place(bad)
