"""What hosts have installed, and what must be the same."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from paceline.launch.hosts.facts import HostFacts, collect_facts, compare, label_hosts, source_digest

A = HostFacts("node-a", "10.0.0.1", "eth0", 8, ("H200",), "3.11.7", "2.13.0+cu130", "13.0", "2.28.9", "1.0", "12ab", "Linux x86_64")  # fmt: skip


def host(name: str, **changes: object) -> HostFacts:
    return dataclasses.replace(A, host=name, address=f"10.0.0.{ord(name[-1]) - 96}", **changes)


def test_this_host_says_what_it_is_and_it_survives_the_wire() -> None:
    found = collect_facts("127.0.0.1", 2)
    assert (found.interface, found.nproc, found.python) == ("lo", 2, ".".join(map(str, sys.version_info[:3])))
    assert found.torch[0].isdigit()
    assert HostFacts.from_record(json.loads(json.dumps(found.to_record()))) == found
    assert compare([found, found]) == []


def test_what_an_unknown_version_does_not_say_is_not_known() -> None:
    found = HostFacts.from_record({"host": "node-b", "nproc": "many", "gpus": 3})
    assert (found.torch, found.nproc, found.gpus) == ("unknown", 0, ())


def test_what_may_differ() -> None:
    assert compare([A, host("node-b", nproc=4, gpus=(), python="3.11.9", interface="ib0")]) == []


def test_two_versions_are_named_with_their_hosts() -> None:
    problems = compare([A, host("node-b", torch="2.12.1+cu130", python="3.12.1")])
    assert [problem.what for problem in problems] == [
        "Python is 3.11 on node-a and 3.12 on node-b",
        "torch is 2.13.0+cu130 on node-a and 2.12.1+cu130 on node-b",
    ]
    assert problems[1].do == "pip install torch==2.13.0 on node-b"


def test_the_odd_one_out_is_named_also_where_it_is_the_first() -> None:
    (problem,) = compare([A, host("node-b", nccl="2.27.1"), host("node-c", nccl="2.27.1")])
    assert problem.what == "NCCL is 2.27.1 on node-b and 2.28.9 on node-a"
    assert problem.where == "node-a"


def test_the_same_version_with_another_source_is_another_version() -> None:
    (problem,) = compare([A, host("node-b", digest="34cd")])
    assert "the source of paceline is 12ab on node-a and 34cd on node-b" in problem.what
    (problem,) = compare([A, host("node-b", digest="34cd", paceline="1.1")])
    assert problem.do == "pip install paceline==1.0 on node-b"


def test_each_host_has_a_label_of_its_own() -> None:
    assert label_hosts([A, host("node-b")]) == ["node-a", "node-b"]
    same = dataclasses.replace(A, address="10.0.0.9")
    assert label_hosts([A, same]) == ["node-a (10.0.0.1)", "node-a (10.0.0.9)"]
    assert label_hosts([A, A]) == ["node-a #1", "node-a #2"]


def test_the_digest_follows_names_and_content(tmp_path: Path) -> None:
    found = set()
    for name, file, text in (("a", "x.py", "1"), ("b", "x.py", "2"), ("c", "y.py", "1"), ("d", "x.py", "1")):
        (tmp_path / name / "__pycache__").mkdir(parents=True)
        (tmp_path / name / file).write_text(text)
        (tmp_path / name / "__pycache__" / "x.pyc").write_text(name)
        found.add(source_digest(tmp_path / name))
    assert len(found) == 3
