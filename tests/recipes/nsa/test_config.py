"""What an nsa configuration refuses, decides and leaves without effect."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paceline.config.contradictions import Facts
from paceline.errors import ConfigError
from paceline.recipes.job import load_job
from paceline.recipes.nsa.config import Model, NsaConfig, is_sparse
from paceline.recipes.nsa.kernels.fast_path import FAST
from paceline.recipes.nsa.paths import build_stages, choose_path
from paceline.recipes.nsa.torch_path import TORCH
from tests.recipes.nsa.gpus import pretend_gpu


def load(*overrides: str) -> NsaConfig:
    job = load_job("nsa", list(overrides), environ={})
    job.check(Facts(world_size=1, num_gpus=0))
    config = job.config
    assert isinstance(config, NsaConfig)
    return config


@pytest.mark.parametrize(
    ("overrides", "what", "do"),
    [
        (["model.heads=5"], "5 = 2 × 2 + 1", "set model.groups=1, or model.heads=6"),
        (["model.head_width=7"], "is odd", "set model.head_width=8"),
        (["model.sparse_path=fast"], "kernels take 64 and 128", "set model.head_width=64"),
        (["model.sparse_path=fast", "model.head_width=64", "model.heads=34"], "16 per group", "set model.groups=17"),
        (["model.block=10"], "model.block=10 is no multiple of model.stride=4", "set model.block=12"),
        (["model.selection_block=18"], "model.selection_block=18 is no multiple", "set model.selection_block=20"),
        (["model.block=32"], "smaller than model.block=32", "set model.selection_block=32"),
        (["model.selected=2"], "no room for the 3 blocks", "set model.selected=3"),
        (["data.source=shards"], "without data.path", "paceline prepare fineweb"),
        (["data.source=needle", "data.length=1024", "data.needle_distance=20"], "within the sliding window", "=64"),
    ],
)
def test_refused_with_the_reason(overrides: list[str], what: str, do: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(*overrides)
    assert what in str(caught.value.render())
    assert do in str(caught.value.render())


@pytest.mark.parametrize(
    "idle",
    [
        ["model.selected=1"],
        ["model.block=10"],
        ["model.selection_block=4"],
        ["model.sparse_path=fast", "model.head_width=32"],
        ["model.sparse_path=fast", "model.head_width=64", "model.heads=34"],
    ],
)
def test_what_dense_attention_does_not_read_is_not_refused(idle: list[str]) -> None:
    load("model.sparse=never", *idle)
    load("model.sparse=auto", "model.break_even=513", *idle)
    with pytest.raises(ConfigError):
        load("model.sparse=auto", "model.break_even=512", *idle)


@pytest.mark.parametrize(("given", "what"), [("model.heads=5", "5 = 2 × 2 + 1"), ("model.head_width=7", "is odd")])
def test_heads_have_to_fit_in_either(given: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("model.sparse=never", given)
    assert what in caught.value.render()


@pytest.mark.parametrize(
    ("given", "what", "do"),
    [
        ("model.head_width=96", "whose kernels take 64 and 128", "set model.head_width=64, or"),
        ("model.selection_block=48", "whose kernels take 16, 32, 64 and 128", "set model.selection_block=32, or"),
        ("model.selected=257", "model.selected=257 with model.sparse_path=fast", "set model.selected=256, or"),
        ("model.heads=34", "model.heads=34 in model.groups=2 with model.sparse_path=fast", "set model.groups=17, or"),
    ],
)
def test_sizes_that_kernels_do_not_take_are_refused_without_a_gpu(given: str, what: str, do: str) -> None:
    """And what is advised is taken."""
    with pytest.raises(ConfigError) as caught:
        load_fast(given)
    assert what in caught.value.render()
    assert do in caught.value.render()
    load_fast(given, do.removeprefix("set ").partition(",")[0])


@pytest.mark.parametrize(
    ("sizes", "do"),
    [
        (["model.block=48", "model.selection_block=48"], "set model.selection_block=64, or model.sparse_path=auto"),
        (["model.stride=24", "model.block=24", "model.selection_block=24"], "set model.sparse_path=auto"),
    ],
)
def test_advised_blocks_fit_the_other_sizes(sizes: list[str], do: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_fast(*sizes)
    assert do in caught.value.render()


@pytest.mark.parametrize(
    "given",
    [
        ["model.head_width=33"],
        ["model.selection_block=100", "model.window=8"],
        ["model.heads=34", "model.groups=3"],
        ["model.heads=50", "model.groups=3"],
        ["model.block=24", "model.stride=16", "model.selection_block=20"],
        ["model.block=256", "model.selection_block=64"],
        ["model.block=256", "model.selection_block=20"],
        ["model.heads=51", "model.groups=7", "model.head_width=7", "model.block=7", "model.selection_block=3"],
    ],
)
def test_all_advice_taken_at_once_is_accepted(given: list[str]) -> None:
    """And no two problems advise different values of one key."""
    with pytest.raises(ConfigError) as caught:
        load_fast(*given)
    advised: dict[str, set[str]] = {}
    for problem in caught.value.problems:
        first = problem.do.removeprefix("set ").partition(",")[0]
        for word in first.split(" and "):
            advised.setdefault(word.partition("=")[0], set()).add(word)
    assert all(len(words) == 1 for words in advised.values()), advised
    load_fast(*given, *(word for words in advised.values() for word in words))


def test_how_far_needles_must_be_is_one_number_for_the_window_and_for_the_blocks() -> None:
    with pytest.raises(ConfigError) as caught:
        load(
            "data.source=needle",
            "data.length=4096",
            "model.window=300",
            "model.selection_block=200",
            "data.needle_distance=20",
        )
    assert [problem.do for problem in caught.value.problems if "needle_distance" in problem.do] == [
        "set data.needle_distance=400"
    ] * 2


def load_fast(*changes: str) -> None:
    """With sizes that kernels take, but for these; the last of a name counts."""
    usual = ["heads=4", "groups=2", "head_width=64", "block=32", "stride=16", "selection_block=64", "sparse_path=fast"]
    sizes = dict(each.removeprefix("model.").split("=") for each in [*usual, *changes])
    load("model.sparse=always", *(f"model.{name}={size}" for name, size in sizes.items()))


def test_auto_is_sparse_from_the_break_even_on_and_says_so() -> None:
    sparse, why = is_sparse(load("model.sparse=auto", "model.break_even=512"))
    assert (sparse, why) == (True, "data.length=512 >= model.break_even=512")
    sparse, why = is_sparse(load("model.sparse=auto", "model.break_even=513"))
    assert not sparse
    assert why == "data.length=512 < model.break_even=513: below it dense attention is the faster one"
    assert is_sparse(load("model.sparse=never")) == (False, "as requested")


def test_what_changes_nothing_is_named() -> None:
    def idle(*overrides: str) -> set[str]:
        job = load_job("nsa", list(overrides), environ={})
        return {name for name, _ in job.idle({word.partition("=")[0] for word in overrides})}

    assert idle("model.sparse=never", "model.window=8", "model.gate=softmax", "attention.impl=sdpa") == {
        "model.window",
        "model.gate",
    }
    assert idle("model.sparse=always", "model.break_even=9", "attention.impl=flash") == {
        "model.break_even",
        "attention.impl",
    }
    assert idle("model.sparse=always", "attention.fallback=error") == set(), "it refuses plain torch on a GPU"
    assert idle("model.sparse=always", "attention.fallback=error", "attention.impl=flash") == set(), "it ends the run"
    for decided in ("model.sparse=never", "model.sparse_path=torch"):
        assert "attention.fallback" in idle(decided, "attention.fallback=error")


def test_trainings_that_the_page_tunes_have_tiles() -> None:
    page = (Path(__file__).parents[3] / "docs" / "nsa-kernels.md").read_text(encoding="utf-8")
    commands = [
        line.split() for line in page.splitlines() if line.startswith("paceline train") and "model.tiles=" in line
    ]
    assert commands
    for _, _, config, *overrides in commands:
        # Its data is not here: what is drawn has the same shape.
        job = load_job(config, [*overrides, "data.source=synthetic"], environ={})
        assert "model.tiles" not in dict(job.idle({"model.tiles"})), f"{config}: attention is dense"


def test_the_path_on_a_cpu() -> None:
    model = Model()
    path = choose_path("auto", "cpu", model, "error")
    assert (path.name, path.reason) == ("torch", "its kernels are for GPUs, and there is none here")
    with pytest.raises(ConfigError, match=r"sparse_path=fast cannot be served here: its kernels are for GPUs"):
        choose_path("fast", "cpu", model, "warn")
    assert choose_path("reference", "cpu", model, "warn").name == "reference"
    assert build_stages("torch") is TORCH
    assert build_stages("reference") is None


def test_a_silent_fallback_on_a_gpu_can_be_refused() -> None:
    wide = Model(head_width=32)
    assert choose_path("auto", "cuda", wide, "warn").name == "torch"
    with pytest.raises(ConfigError, match="64 or 128 wide, not 32"):
        choose_path("auto", "cuda", wide, "error")
    assert choose_path("torch", "cuda", wide, "error").name == "torch"


def test_more_selected_blocks_than_kernels_take_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch)
    assert choose_path("auto", "cuda", Model(selected=256), "warn").name == "fast"
    path = choose_path("auto", "cuda", Model(selected=257), "warn")
    assert (path.name, path.reason) == ("torch", "its kernels take up to 256 selected blocks, not 257")


def test_blocks_that_no_tile_fits_into_are_for_larger_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch)
    large = Model(selection_block=128, head_width=128)
    monkeypatch.setattr("paceline.recipes.nsa.paths.find_shared", lambda device: 99 * 2**10)
    path = choose_path("auto", "cuda", large, "warn")
    assert path.name == "torch"
    assert path.reason.startswith(
        "its kernels need 152 KiB of shared memory for selection blocks of 128 tokens of heads "
    )
    assert path.reason.endswith("128 wide, and this GPU has 99")
    with pytest.raises(ConfigError, match=r"sparse_path=fast cannot be served here: its kernels need 152 KiB"):
        choose_path("fast", "cuda", large, "warn")
    for fitting in (Model(selection_block=128), Model(head_width=128)):
        assert choose_path("fast", "cuda", fitting, "warn").name == "fast"
    monkeypatch.setattr("paceline.recipes.nsa.paths.find_shared", lambda device: 163 * 2**10)
    assert choose_path("fast", "cuda", large, "warn").name == "fast"


@pytest.mark.parametrize(("capability", "name"), [((7, 5), "torch"), ((8, 0), "fast"), ((12, 0), "fast")])
def test_older_gpus_have_no_kernels(capability: tuple[int, int], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch, capability)
    path = choose_path("auto", "cuda", Model(), "warn")
    assert path.name == name
    if name == "torch":
        assert path.reason == "its kernels need a GPU of compute capability 8.0 or later, and this one has 7.5"


def test_gpus_of_amd_have_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """An MI300 says 9.4 where NVIDIA's say their compute capability, and Hopper is 9.0."""
    pretend_gpu(monkeypatch, (9, 4))
    monkeypatch.setattr(torch.version, "hip", "7.0")
    path = choose_path("auto", "cuda", Model(), "warn")
    assert (path.name, path.reason) == (
        "torch",
        "its kernels are for GPUs of NVIDIA, and this torch is for those of AMD",
    )


def test_kernels_where_there_is_a_gpu_and_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch)
    assert choose_path("auto", "cuda", Model(), "error").name == "fast"
    assert build_stages("fast") is FAST
    with pytest.raises(ConfigError, match="selection blocks of 16, 32, 64 or 128 tokens, not 48"):
        choose_path("fast", "cuda", Model(selection_block=48), "warn")
    monkeypatch.setattr("paceline.recipes.nsa.paths.find_spec", lambda name: None)
    assert choose_path("auto", "cuda", Model(), "warn").reason == "its kernels need Triton, which is not installed"
