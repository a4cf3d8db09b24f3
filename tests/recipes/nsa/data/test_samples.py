from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.config.arithmetic import plan_batches
from paceline.engine.order import SampleOrder
from paceline.errors import ConfigError, DataError
from paceline.recipes.held_out import is_held_out
from paceline.recipes.nsa.batch import NO_LABEL, TokenBatch
from paceline.recipes.nsa.data.corpus import write_corpus
from paceline.recipes.nsa.data.prepare import prepare
from paceline.recipes.nsa.data.request import Request
from paceline.recipes.nsa.data.samples import LanguageData, load_samples
from paceline.recipes.nsa.data.source import identify_data, read_vocabulary
from paceline.recipes.nsa.data_config import Data, check_data, find_idle_data
from paceline.workload import Draw
from tests.recipes.nsa.data.gpt2 import gpt2_files

DRAW = Draw(seed=0, epoch=0)
SMALL = {"documents": 60, "samples": 10, "length": 128, "vocabulary": 1000, "needle_distance": 32, "needle_first": 16}


def build(source: str, **more: object) -> Data:
    return Data.model_validate(SMALL | {"source": source} | more)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    texts = write_corpus(100, seed=3)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    request = Request((tmp_path / "a.jsonl",), tmp_path / "out", validation_share=0.2, shard_tokens=30_000)
    prepare(request, lambda progress: None)
    return tmp_path / "out"


@pytest.fixture(params=["text", "shards", "needle", "synthetic"])
def data(request: pytest.FixtureRequest, shards: Path) -> Data:
    return build(request.param, path=str(shards) if request.param == "shards" else None)


def rows(found: LanguageData, ids: list[int], split: str = "train", draw: Draw = DRAW) -> TokenBatch:
    return TokenBatch.of((found.train if split == "train" else found.validation).fetch(ids, draw))


def test_a_batch_has_the_form_that_the_model_expects(data: Data) -> None:
    found = load_samples(data)
    batch = rows(found, [3, 0, 5])
    assert {name: (tuple(t.shape), t.dtype) for name, t in batch.tensors().items()} == {
        "input_ids": ((3, 128), torch.int64),
        "labels": ((3, 128), torch.int64),
        "positions": ((3, 128), torch.int32),
    }
    assert 0 <= int(batch.input_ids.min()) <= int(batch.input_ids.max()) < found.vocabulary == read_vocabulary(data)
    assert set(batch.labels[batch.is_labelled].tolist()) <= set(range(found.vocabulary))
    assert (batch.positions[:, 0] == 0).all()
    assert bool(batch.is_labelled.any(1).all())
    assert int(batch.num_labels) == int(batch.is_labelled.sum())


def test_a_sample_is_the_same_whoever_fetches_it_and_with_whatever_else(data: Data) -> None:
    found, other = load_samples(data), load_samples(data)
    together = rows(found, list(range(len(found.train))))
    for sample in (0, len(found.train) - 1):
        alone = rows(other, [sample])
        assert all(torch.equal(a[0], b[sample]) for a, b in zip(_parts(alone), _parts(together), strict=True))


def _parts(batch: TokenBatch) -> list[torch.Tensor]:
    return list(batch.tensors().values())


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_step_holds_the_same_samples_on_any_number_of_ranks(data: Data, world_size: int) -> None:
    found = load_samples(data)
    num_samples = len(found.train)
    order = SampleOrder(num_samples, 7, -(-num_samples // 7), seed=5)
    seen: list[int] = []
    for index in range(order.steps_per_epoch):
        ids = order.batch(0, index)
        whole = rows(found, ids.tolist())
        plan = plan_batches(7, 2, None, world_size)
        parts = [
            rows(found, ids[start:end].tolist())
            for rank in range(world_size)
            for start, end in plan.slice(len(ids), rank)
            if end > start
        ]
        for name, tensor in whole.tensors().items():
            together = torch.cat([part.tensors()[name] for part in parts])
            assert sorted(map(tuple, together.tolist())) == sorted(map(tuple, tensor.tolist()))
        seen += ids.tolist()
    assert sorted(seen) == list(range(num_samples))


def test_an_epoch_is_the_data_once(shards: Path) -> None:
    data = build("shards", path=str(shards))
    found = load_samples(data)
    batch = rows(found, list(range(len(found.train))))
    manifest = json.loads((shards / "manifest.json").read_text())
    tokens, documents = manifest["counts"]["train_tokens"], manifest["counts"]["train_documents"]
    assert int(batch.num_labels) == tokens - documents
    assert found.train.num_tokens(range(len(found.train))) in (tokens, tokens - 1)
    assert found.tokenizer is not None
    text = found.tokenizer.decode(batch.input_ids.flatten().tolist())
    assert all(one in text for one in write_corpus(100, seed=3) if not is_held_out(one, 0.2))


def test_what_is_evaluated_is_not_trained_on() -> None:
    found = load_samples(build("text", documents=400))
    assert found.tokenizer is not None
    sides = []
    for samples, split in ((found.train, "train"), (found.validation, "validation")):
        ids = rows(found, list(range(len(samples))), split).input_ids.flatten().tolist()
        documents = "".join(chr(i) if i < 256 else "\0" for i in ids).split("\0")
        sides.append({one for one in documents if one})
    assert not sides[0] & sides[1]
    assert len(sides[1]) > 5


@pytest.mark.parametrize("source", ["text", "needle", "synthetic"])
def test_generated_data_follows_from_its_seed(source: str) -> None:
    data = build(source)
    other = data.model_copy(update={"seed": 1})
    first, second = rows(load_samples(data), [0, 1]), rows(load_samples(other), [0, 1])
    assert not torch.equal(first.input_ids, second.input_ids)
    assert identify_data(data) != identify_data(other)
    assert identify_data(data) == identify_data(data.model_copy())


def test_shards_are_known_by_their_tokens_wherever_they_lie(shards: Path, tmp_path: Path) -> None:
    before = identify_data(build("shards", path=str(shards)))
    shards.rename(tmp_path / "moved")
    assert identify_data(build("shards", path=str(tmp_path / "moved"))) == before
    assert identify_data(build("shards", path=str(tmp_path / "moved"), tokenizer="bytes")) == before


def test_random_tokens_say_that_their_losses_mean_nothing() -> None:
    found = load_samples(build("synthetic"))
    assert "losses mean nothing" in found.details["note"]
    assert int(rows(found, [0]).num_labels) == 128
    assert not torch.equal(rows(found, [0]).input_ids, rows(found, [0], "validation").input_ids)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda place: (place / "train-00000.tokens").unlink(), "missing"),
        (lambda place: os_truncate(place / "train-00001.tokens"), "truncated"),
        (lambda place: (place / "train-00000.tokens").write_bytes(b"RIFF" + bytes(200)), "no token shard"),
        (lambda place: swap(place), "not the one that the manifest names"),
        (lambda place: (place / "manifest.json").write_text("{"), "no manifest"),
        (lambda place: (place / "manifest.json").write_text('{"v": 9}'), "version 9"),
        (lambda place: (place / "manifest.json").unlink(), r"no manifest\.json"),
    ],
)
def test_damaged_shards_are_refused_before_anything_is_trained(shards: Path, damage: object, says: str) -> None:
    assert callable(damage)
    damage(shards)
    for use in (identify_data, load_samples):
        with pytest.raises(DataError, match=says):
            use(build("shards", path=str(shards)))


def os_truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def swap(place: Path) -> None:
    first, second = place / "train-00000.tokens", place / "train-00001.tokens"
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)


def test_a_tokenizer_that_does_not_match_is_refused_with_both_fingerprints(shards: Path, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="needs paceline[lm]")
    data = build("shards", path=str(shards), tokenizer=str(gpt2_files(tmp_path / "gpt2")))
    for use in (identify_data, load_samples, read_vocabulary):
        with pytest.raises(DataError, match="not the one that made these tokens") as caught:
            use(data)
        assert "bytes:1" in str(caught.value)
        assert "tokenizers:" in str(caught.value)


def test_shards_without_a_path_or_with_a_wrong_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"without data\.path"):
        load_samples(build("shards"))
    with pytest.raises(DataError, match="no such directory"):
        load_samples(build("shards", path=str(tmp_path / "nowhere")))


def test_a_relative_path_says_from_where_it_was_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as caught:
        load_samples(build("shards", path="nowhere"))
    assert caught.value.problems[0].where == f"data.path=nowhere (seen from {tmp_path})"


def test_keys_that_change_nothing_are_known() -> None:
    idle = {source: {name for name, _ in find_idle_data(build(source, path="x"))} for source in ("text", "shards")}
    assert {"data.path", "data.vocabulary", "data.needle_pairs", "data.samples"} <= idle["text"]
    assert {"data.seed", "data.documents"} <= idle["shards"]
    assert not {"data.length", "data.source", "data.num_workers"} & (idle["text"] | idle["shards"])


def test_a_model_that_is_no_better_than_the_letters_themselves_can_be_told_from_one_that_is() -> None:
    """The corpus has structure at many ranges: the longer the context, the better its letters can be told."""
    text = "\n".join(write_corpus(300, seed=0)).encode()
    entropy = [_conditional_entropy(text, order) for order in (0, 1, 3)]
    assert entropy[0] > 4
    assert entropy[0] > entropy[1] + 1
    assert entropy[1] > entropy[2] + 1


def _conditional_entropy(text: bytes, order: int) -> float:
    grams = [
        np.frombuffer(text, np.uint8)[i : len(text) - order + i].astype(np.uint64) << np.uint64(8 * i)
        for i in range(order + 1)
    ]
    whole = sum(grams[1:], grams[0])
    _, joint = np.unique(whole, return_counts=True)
    _, before = np.unique(whole & np.uint64(2 ** (8 * order) - 1), return_counts=True)
    bits = [-(c / c.sum() * np.log2(c / c.sum())).sum() for c in (joint, before)]
    return float(bits[0] - bits[1])


class TestNeedle:
    @pytest.mark.parametrize(("length", "pairs", "tokens"), [(128, 4, 2), (1024, 1, 1), (8192, 8, 3)])
    def test_the_answers_lie_where_only_a_search_finds_them(self, length: int, pairs: int, tokens: int) -> None:
        distance, first = (32, 16) if length == 128 else (512, 64)
        data = build(
            "needle",
            length=length,
            needle_pairs=pairs,
            needle_tokens=tokens,
            needle_distance=distance,
            needle_first=first,
        )
        found = load_samples(data)
        asked = pairs * (tokens + 2)
        for row in range(5):
            batch = rows(found, [row])
            ids, labels = batch.input_ids[0].tolist(), batch.labels[0]
            is_needle = [i for i in range(length - asked) if ids[i] >= 258]
            assert len(is_needle) == asked
            assert min(is_needle) >= first
            assert max(is_needle) < length - asked - distance
            where = [i for i in range(length) if labels[i] != NO_LABEL]
            assert len(where) == pairs * tokens
            assert min(where) > length - asked
            # Each answer is what was planted behind the same name.
            planted = {ids[i + 1]: ids[i + 2 : i + 2 + tokens] for i in is_needle if ids[i] == 258}
            asked_for = {
                ids[i + 1]: labels[i + 1 : i + 1 + tokens].tolist()
                for i in range(length - asked, length)
                if ids[i] == 259
            }
            assert planted == asked_for
            assert len(planted) == pairs

    def test_values_are_drawn_anew_in_each_epoch_but_not_in_validation(self) -> None:
        found = load_samples(build("needle"))
        later = Draw(seed=0, epoch=1)
        assert not torch.equal(rows(found, [0]).labels, rows(found, [0], draw=later).labels)
        assert torch.equal(rows(found, [0], "validation").labels, rows(found, [0], "validation", later).labels)
        assert not torch.equal(rows(found, [0]).labels, rows(found, [0], "validation").labels)

    def test_guessing_is_right_once_in_64(self) -> None:
        found = load_samples(build("needle", samples=1000))
        batch = rows(found, list(range(1000)))
        _, counts = np.unique(batch.labels[batch.is_labelled].numpy(), return_counts=True)
        assert len(counts) == 64
        assert counts.max() / counts.sum() < 1 / 32

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"length": 64}, r"no room for the needles.*set data\.length=80"),
            ({"window": 64}, r"within the sliding window of 64.*data\.needle_distance=64"),
            ({"block": 32}, r"within the first block of 32.*data\.needle_first=32"),
            ({"block": 17}, r"within the two local blocks of 17.*data\.needle_distance=34"),
        ],
    )
    def test_what_would_be_no_search_is_refused(self, changes: dict[str, int], says: str) -> None:
        data = build("needle", length=changes.get("length", 128))
        problems = list(check_data(data, changes.get("window"), changes.get("block")))
        text = "\n".join(" ".join(problem.lines()) for problem in problems)
        assert re.search(says, text), text
