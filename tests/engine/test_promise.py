"""What was promised, written and read, and held against made-up profiles."""

from __future__ import annotations

import pytest

from paceline.engine.kernels import Seen
from paceline.engine.promise import check_promise, name_attentions, read_promise, write_promise
from paceline.workload import AttentionCall

BRANCHES = "compressed nsa_range, selected nsa_chosen, window nsa_range"
BY_TORCH = "compressed torch, selected torch, window torch"


def call(phase: str, name: str = "") -> AttentionCall:
    return AttentionCall(phase, rows=1, heads=1, queries=8, keys=8, width=8, name=name)


def seen(*backends: str) -> list[Seen]:
    return [Seen(backend, (f"{backend}_kernel",), 1, 1.0) for backend in backends]


def test_phases_are_named_where_they_differ_and_branches_always() -> None:
    assert write_promise([(call("training"), "flash"), (call("evaluation"), "flash")]) == "flash"
    differing = [(call("training"), "math"), (call("evaluation"), "flash")]
    assert write_promise(differing) == "training math, evaluation flash"
    kernels = {"compressed": "nsa_range", "selected": "nsa_chosen", "window": "nsa_range"}
    branches = [(call(phase, name), own) for phase in ("training", "evaluation") for name, own in kernels.items()]
    assert write_promise(branches) == BRANCHES
    mixed = [*differing, (call("training", "window"), "nsa_range"), (call("evaluation", "window"), "torch")]
    assert write_promise(mixed) == "training math, evaluation flash, training window nsa_range, evaluation window torch"
    assert read_promise(write_promise(mixed)) == {"": "math", "window": "nsa_range"}
    assert read_promise(BRANCHES) == kernels


def test_which_branches_a_kernel_is_for() -> None:
    assert name_attentions(BRANCHES, "nsa_range") == ["compressed", "window"]
    assert name_attentions(BRANCHES, "nsa_score") == []
    assert name_attentions("flash", "flash") == []


@pytest.mark.parametrize(
    ("promised", "backends"),
    [
        ("flash", ["flash"]),
        ("training flash, evaluation math", ["flash"]),
        ("math", ["eager"]),  # a replayed graph shows the softmax alone
        (BRANCHES, ["nsa_chosen", "nsa_range", "nsa_score"]),
        (BY_TORCH, ["flash"]),
        (BY_TORCH, ["math", "efficient"]),
        (BY_TORCH, ["eager"]),
        ("compressed nsa_range, window torch", ["nsa_range"]),  # what is written out does not show beside a kernel
        ("flash, window nsa_range", ["flash", "nsa_range"]),
    ],
)
def test_a_promise_that_is_kept(promised: str, backends: list[str]) -> None:
    assert check_promise(promised, seen(*backends)) == ""


@pytest.mark.parametrize(
    ("promised", "backends", "says"),
    [
        ("training math, evaluation flash", ["flash"], "math was promised for training, and the profile shows flash"),
        ("cudnn", ["eager"], "shows eager"),
        ("flash", [], "no kernel of any attention"),
        (BRANCHES, ["nsa_range", "nsa_score"], "nsa_chosen for selected was promised for training, and the profile"),
        (BRANCHES, ["flash"], "nsa_range for compressed, nsa_chosen for selected, nsa_range for window were promised"),
        (BRANCHES, ["nsa_chosen", "nsa_range", "efficient"], "shows efficient besides"),
        (BY_TORCH, ["nsa_range", "nsa_chosen"], "torch for compressed"),
        (BY_TORCH, [], "no kernel of any attention"),
        ("flash, window nsa_range", ["flash"], "nsa_range for window was promised"),
    ],
)
def test_a_promise_that_is_broken(promised: str, backends: list[str], says: str) -> None:
    assert says in check_promise(promised, seen(*backends))
