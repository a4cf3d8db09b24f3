"""Ranks that measure the machine they are on: really started, really reduced, and gone afterwards."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil
import pytest

from paceline.errors import PacelineError
from paceline.preflight.probing import probe
from paceline.preflight.subject import Subject, build_subject


def subject_of(nproc: int, **environment: str) -> Subject:
    flags = {"launch.nproc": (nproc, "flag --nproc"), "launch.gpus": ([], "flag --gpus")}
    subject, _ = build_subject(None, flags)
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    whole = {**subject.environment, "PYTHONPATH": path, **environment}
    return Subject(subject.config, subject.placement, subject.root, whole, subject.origins)


def test_collectives_and_products_of_two_ranks() -> None:
    before = set(psutil.Process().children(recursive=True))
    ops = ("all_reduce", "all_gather", "reduce_scatter")
    found = probe(subject_of(2), ops=ops, sizes=[100, 1 << 16], repeats=4, product=True)
    assert (found["backend"], found["world_size"], found["nccl"]) == ("gloo", 2, None)
    rows = [(row["op"], row["bytes"]) for row in found["collectives"]]
    assert rows == [(op, size) for size in (104, 1 << 16) for op in ops]
    assert all(3 <= len(row["seconds"]) <= 4 and min(row["seconds"]) > 0 for row in found["collectives"])
    assert [(one["rank"], one["device"]) for one in found["products"]] == [(0, "cpu"), (1, "cpu")]
    assert all(one["flops"] > 1e6 for one in found["products"])
    assert set(psutil.Process().children(recursive=True)) == before


@pytest.mark.slow
def test_ranks_that_cannot_talk_say_why() -> None:
    with pytest.raises(PacelineError) as caught:
        probe(subject_of(2, GLOO_SOCKET_IFNAME="nosuch0"), ops=["all_reduce"], sizes=[100], repeats=3, product=False)
    assert "nosuch0" in str(caught.value)


@pytest.mark.slow
def test_ranks_that_do_not_come_back_are_ended() -> None:
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(PacelineError, match="did not come back within 1 s"):
        probe(subject_of(2), ops=["all_reduce"], sizes=[100], repeats=3, product=False, timeout_s=1)
    assert set(psutil.Process().children(recursive=True)) == before


@pytest.mark.slow
def test_the_whole_command(paceline, tmp_path: Path) -> None:
    code, out, err = paceline("preflight", "sasrec", "--nproc", "2", "--json").finish()
    assert code == 0, err
    record = json.loads(out)
    found = {check["name"]: check for check in record["checks"]}
    assert found["collective"]["values"]["bus_bytes_per_s"] > 0
    assert len(found["matrix product"]["values"]["flops"]) == 2
    assert "checkpoints take" in found["room"]["found"]
    assert list(tmp_path.iterdir()) == []
    code, out, err = paceline("bench", "collective", "--sizes", "4K", "--repeats", "5", "--json").finish()
    assert code == 0, err
    assert [row["repeats"] for row in json.loads(out)["rows"]] == [5, 5, 5]
