import pickle

import numpy as np
import pytest
import torch

from paceline.recipes.sasrec.config import SasrecConfig
from paceline.recipes.sasrec.workload import SasrecWorkload
from paceline.workload import Draw, Setting

DRAW = Draw(seed=3, epoch=1, batch=[])

EVENTS = "a 1 2 3 4 5 1\nb 6 7\nc 1 2 3\nd 8 8 8 9 8"


@pytest.fixture
def build(tmp_path):
    path = tmp_path / "data.txt"
    lines = (line.split() for line in EVENTS.splitlines())
    path.write_text("".join(f"{user} {item} {60 * n}\n" for user, *items in lines for n, item in enumerate(items)))

    def make(data=None, **sections):
        data = {"path": str(path), **(data or {})}
        return SasrecWorkload(SasrecConfig.model_validate({"recipe": "sasrec", "data": data, **sections}))

    return make


def generated(data=None, **sections):
    data = {"users": 50, "items": 30, "events_per_user": 12, "max_length": 10, **(data or {})}
    return SasrecWorkload(SasrecConfig.model_validate({"recipe": "sasrec", "data": data, **sections}))


def test_a_training_batch_is_what_its_docstring_says(build):
    train = build().train_set()
    batch = train.fetch([2, 0, 1], DRAW)
    assert len(train) == 3
    assert sorted(batch) == ["items", "targets"]
    assert batch["items"].tolist() == [[8, 8, 0], [1, 2, 3], [6, 0, 0]]
    assert batch["targets"].tolist() == [[8, 8, 0], [2, 3, 4], [7, 0, 0]]


def test_the_window_is_the_last_of_training(build):
    batch = build({"max_length": 2}).train_set().fetch([0], DRAW)
    assert batch["items"].tolist() == [[2, 3]]
    assert batch["targets"].tolist() == [[3, 4]]


def test_held_out_items_are_never_trained_on(build):
    # Item 9 is an answer only, 5 too; 1 is trained on as user a's first event alone.
    for window in ("last", "random"):
        batches = [build({"window": window}).train_set().fetch(range(3), Draw(3, epoch, [])) for epoch in range(5)]
        trained = {item for batch in batches for name in ("items", "targets") for item in batch[name].ravel().tolist()}
        assert trained == {0, 1, 2, 3, 4, 6, 7, 8}


def test_evaluation_inputs_are_everything_before_the_answer(build):
    validation = build().evaluation_set("validation").fetch([0, 1, 2], DRAW)
    assert validation["items"].tolist() == [[1, 2, 3, 4], [1, 0, 0, 0], [8, 8, 8, 0]]
    assert validation["lengths"].tolist() == [4, 1, 3]
    assert validation["answers"].tolist() == [5, 2, 9]
    test = build({"max_length": 2}).evaluation_set("test").fetch([0, 1, 2], DRAW)
    assert test["items"].tolist() == [[4, 5], [1, 2], [8, 9]]
    assert test["answers"].tolist() == [1, 3, 8]


def test_seen_items_are_the_whole_history(build):
    batch = build({"max_length": 2}, evaluate={"mask_seen": True}).evaluation_set("test").fetch([2, 1, 0], DRAW)
    assert batch["seen"].tolist() == [[8, 8, 8, 9, 0], [1, 2, 0, 0, 0], [1, 2, 3, 4, 5]]


def test_times_count_from_the_first_event_in_training_and_evaluation_alike(build):
    workload = build({"max_length": 2}, model={"time": True})
    train = workload.train_set().fetch([0, 2], DRAW)
    assert train["elapsed"].tolist() == [[60.0, 120.0], [0.0, 60.0]]
    assert train["scale"].tolist() == [60.0, 60.0]
    test = workload.evaluation_set("test").fetch([0, 2], DRAW)
    assert test["elapsed"].tolist() == [[180.0, 240.0], [120.0, 180.0]]
    assert torch.equal(test["scale"], train["scale"])


def test_a_random_window_follows_from_the_sample_and_the_epoch_alone():
    train = generated({"window": "random", "max_length": 3}).train_set()
    together = train.fetch([7, 3, 41, 12], DRAW)["items"]
    alone = [train.fetch([one], DRAW)["items"] for one in (7, 3, 41, 12)]
    assert [row.tolist() for row in together] == [row[0].tolist() + [0] * (3 - row.shape[1]) for row in alone]
    epochs = {str(train.fetch(range(len(train)), Draw(3, epoch, []))["items"].tolist()) for epoch in range(4)}
    assert len(epochs) == 4


@pytest.mark.parametrize("window", ["last", "random"])
def test_keys_do_not_depend_on_the_batch(window):
    train = generated({"window": window}, loss={"kind": "bce"}).train_set()
    together = train.fetch([7, 3, 41, 12], DRAW)["keys"]
    assert together.tolist() == [train.fetch([one], DRAW)["keys"].item() for one in (7, 3, 41, 12)]
    assert len(set(together.tolist())) == 4
    assert not torch.equal(together, train.fetch([7, 3, 41, 12], Draw(3, 2, []))["keys"])
    assert not torch.equal(together, train.fetch([7, 3, 41, 12], Draw(4, 1, []))["keys"])


def test_fetching_leaves_global_generators_alone():
    train = generated({"window": "random"}, loss={"kind": "sampled_softmax", "negatives": "in_batch"}).train_set()
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    train.fetch([0, 1], Draw(3, 1, [0, 1]))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])


def test_sets_travel_to_loader_processes_and_to_the_device():
    train = generated(loss={"kind": "bce"}).train_set()
    expected = train.fetch([1, 2], DRAW)
    for other in (pickle.loads(pickle.dumps(train)), train.on_device(torch.device("cpu"))):
        assert all(torch.equal(value, expected[name]) for name, value in other.fetch([1, 2], DRAW).items())


def test_data_on_the_host_stays_there():
    workload = generated({"placement": "host"})
    assert workload.train_set().on_device(torch.device("cpu")) is None
    assert workload.evaluation_set("test").on_device(torch.device("cpu")) is None


@pytest.mark.parametrize("negatives", ["uniform", "popularity", "in_batch"])
def test_shared_negatives_are_those_of_the_step_on_every_rank(negatives):
    loss = {"kind": "sampled_softmax", "num_negatives": 400, "shared": True, "negatives": negatives}
    train = generated({"window": "random"}, loss=loss).train_set()
    step, other = Draw(3, 1, [4, 9, 20, 33]), Draw(3, 1, [9, 4, 20, 33])
    mine, theirs = train.fetch([4, 9], step)["negatives"], train.fetch([20, 33], step)["negatives"]
    assert torch.equal(mine, theirs)
    assert mine.shape == (400,)
    assert set(mine.tolist()) <= set(range(1, 31))
    assert not torch.equal(mine, train.fetch([4, 9], other)["negatives"])
    if negatives == "in_batch":
        assert set(mine.tolist()) <= set(train.fetch([4, 9, 20, 33], step)["targets"].ravel().tolist())


@pytest.mark.parametrize("negatives", ["popularity", "in_batch"])
@pytest.mark.parametrize("window", ["last", "random"])
def test_what_is_held_out_is_no_negative(build, negatives, window):
    """Items 5 and 9 occur in held-out events alone: how often others are drawn must not know of them, nor may they be drawn."""
    loss = {"kind": "sampled_softmax", "negatives": negatives, "shared": True, "num_negatives": 500}
    workload = build({"window": window}, loss=loss)
    drawn = {
        item
        for epoch in range(4)
        for item in workload.train_set().fetch([0], Draw(3, epoch, [0, 1, 2]))["negatives"].tolist()
    }
    assert drawn <= {1, 2, 3, 4, 6, 7, 8}
    log_frequencies = workload.build_model(Setting(torch.device("cpu"), "sdpa")).loss.log_frequencies_N[1:]
    never = {"popularity": [5, 9], "in_batch": [1, 5, 6, 9]}[negatives]  # 1 and 6 are trained on, and never a target
    assert [1 + index for index in (log_frequencies == -torch.inf).nonzero().squeeze(1).tolist()] == never
    assert log_frequencies.exp().sum().item() == pytest.approx(1)
