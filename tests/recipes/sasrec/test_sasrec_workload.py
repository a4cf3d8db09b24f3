from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import paceline
from paceline.engine.attend import KERNELS
from paceline.errors import ConfigError, DataError
from paceline.recipes.sasrec.config import SasrecConfig, check
from paceline.recipes.sasrec.workload import SasrecWorkload
from paceline.workload import Draw, Setting

SMALL = {"users": 60, "items": 40, "events_per_user": 10, "max_length": 8}


@pytest.fixture(autouse=True)
def _one_thread():
    """Models this small gain nothing from a second thread, and lose much where the cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build(data=SMALL, **sections):
    return SasrecWorkload(SasrecConfig.model_validate({"recipe": "sasrec", "data": data, **sections}))


def build_model(workload, seed=0):
    torch.manual_seed(seed)
    return workload.build_model(Setting(torch.device("cpu"), "sdpa"))


def train(workload, epochs, lr=5e-3, batch=64):
    model, samples = build_model(workload).train(), workload.train_set()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(samples))
        for start in range(0, len(order), batch):
            total, weight = workload.loss(
                model,
                samples.fetch(order[start : start + batch], Draw(0, epoch, order[start : start + batch].tolist())),
            )
            optimizer.zero_grad()
            (total / weight).backward()
            optimizer.step()
    return model


@torch.no_grad()
def evaluate(workload, model, split="test"):
    model.eval()
    samples = workload.evaluation_set(split)
    ranks = workload.predict(model, samples.fetch(range(len(samples)), Draw(0, 0, [])))["rank"]
    return workload.metrics(split, {"rank": ranks.numpy()})


def write_random_data(path, users=400, items=200, length=12):
    random = np.random.default_rng(0)
    drawn = random.integers(0, items, (users, length)).tolist()
    lines = (f"{user} {item} {50 * n}\n" for user, row in enumerate(drawn) for n, item in enumerate(row))
    path.write_text("".join(lines))
    return {"path": str(path), "max_length": 10}


LOSSES = [
    {"kind": "ce"},
    {"kind": "bce", "num_negatives": 3},
    {"kind": "gbce", "num_negatives": 5},
    {"kind": "sampled_softmax", "num_negatives": 5},
    {"kind": "sampled_softmax", "num_negatives": 5, "negatives": "popularity"},
    {"kind": "sampled_softmax", "num_negatives": 5, "negatives": "in_batch"},
    {"kind": "sampled_softmax", "num_negatives": 5, "shared": True},
    {"kind": "bce", "num_negatives": 3, "shared": True},
]
VARIANTS = [{"time": time, "mhc": mhc} for time in (False, True) for mhc in (False, True)]


def join(values):
    return "-".join(f"{value}" for value in values.values()) if isinstance(values, dict) else None


@pytest.mark.parametrize("loss", LOSSES, ids=join)
def test_slices_of_a_batch_add_up_to_the_batch(loss):
    workload = build(loss=loss, model={"dropout": 0.0})
    model, samples, draw = build_model(workload), workload.train_set(), Draw(0, 0, list(range(50)))

    def gradient(*slices):
        model.zero_grad()
        sums = [workload.loss(model, samples.fetch(ids, draw)) for ids in slices]
        total, weight = (sum(parts) for parts in zip(*sums, strict=True))
        total.backward()
        return total.item(), weight.item(), torch.cat([parameter.grad.ravel() for parameter in model.parameters()])

    whole = gradient(range(50))
    parts = gradient(range(17), range(17, 18), range(18, 50))
    assert parts[1] == whole[1] == workload.units(range(50))
    assert parts[0] == pytest.approx(whole[0], rel=1e-6)
    torch.testing.assert_close(parts[2], whole[2], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS, ids=join)
def test_every_parameter_of_every_variant_gets_a_gradient(variant):
    workload = build(model=variant)
    model = build_model(workload)
    total, weight = workload.loss(model, workload.train_set().fetch([0, 1, 2], Draw(0, 0, [0, 1, 2])))
    total.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert weight.item() == workload.units([0, 1, 2])


def test_the_loss_at_the_start_is_that_of_guessing():
    workload = build(model={"dropout": 0.0})
    total, weight = workload.loss(build_model(workload), workload.train_set().fetch(range(50), Draw(0, 0, [])))
    assert (total / weight).item() == pytest.approx(np.log(40), rel=0.05)
    assert weight.dtype == torch.float32


def test_ranks_do_not_depend_on_the_neighbours():
    workload = build(evaluate={"mask_seen": True})
    model, samples = build_model(workload).eval(), workload.evaluation_set("validation")
    together = workload.predict(model, samples.fetch([5, 9, 2, 30], Draw(0, 0, [])))["rank"]
    alone = [workload.predict(model, samples.fetch([one], Draw(0, 0, [])))["rank"] for one in (5, 9, 2, 30)]
    assert torch.equal(together, torch.cat(alone))


def test_names_and_objective_follow_top_k():
    workload = build(evaluate={"top_k": [20, 5]})
    assert workload.metric_names == ["hr_20", "ndcg_20", "mrr_20", "hr_5", "ndcg_5", "mrr_5"]
    assert (workload.objective.metric, workload.objective.direction) == ("ndcg_20", "max")
    assert list(workload.metrics("test", {"rank": np.array([1, 2])})) == list(workload.metric_names)


def test_details_count_users_that_hold_nothing_out(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("a 1\na 2\na 3\na 4\nb 1\nc 1\nc 2\nd 1\nd 2\nd 3\n")
    details = build({"path": str(path)}).details()
    assert details["source"] == str(path)
    assert [details[name] for name in ("users", "items", "events", "longest")] == [4, 4, 10, 4]
    assert details["users_train_only"] == 2
    assert details["users_without_targets"] == 2


def test_flops_grow_with_units_and_model():
    small, wide = build(), build(model={"width": 128})
    assert small.step_flops(200) == pytest.approx(2 * small.step_flops(100))
    assert wide.step_flops(100) > 2 * small.step_flops(100)


@pytest.mark.parametrize(
    ("text", "min_events", "match"),
    [
        ("a 1\na 1\na 1\na 1\n", 1, "fewer than 2 items"),
        ("a 1\na 2\nb 1\n", 1, "no user has 3 events"),
        ("a 1\na 2\na 3\nb 1\n", 1, "no user has 2 events besides"),
        ("a 1\na 2\na 3\na 4\n", 5, "fewer than 2 items"),
    ],
)
def test_too_little_data_is_an_error(tmp_path, text, min_events, match):
    (tmp_path / "data.txt").write_text(text)
    with pytest.raises(DataError, match=match) as error:
        build({"path": str(tmp_path / "data.txt"), "min_events": min_events})
    assert f"data.min_events={min_events}" in error.value.problems[0].where


def test_an_untrained_model_scores_about_chance():
    workload = build(SMALL | {"users": 1500, "items": 300})
    scores = [evaluate(workload, build_model(workload, seed))["hr_10"] for seed in range(3)]
    # Not k/N exactly: an untrained model puts the item it has just seen first, and 1 % of events repeat it.
    assert np.mean(scores) == pytest.approx(10 / 300, abs=0.025)


@pytest.mark.parametrize("variant", VARIANTS, ids=join)
def test_a_model_trained_on_random_data_scores_chance(tmp_path, variant):
    workload = build(write_random_data(tmp_path / "random.txt"), model={"width": 16, "dropout": 0.0, **variant})
    model = train(workload, epochs=4)
    hit_rates = [evaluate(workload, model, split)["hr_10"] for split in workload.splits]
    assert np.mean(hit_rates) == pytest.approx(10 / 200, abs=0.04)  # 5 standard deviations of 800 draws


@pytest.mark.parametrize("mask_seen", [False, True])
def test_renaming_the_items_changes_no_rank(mask_seen):
    """Items are told apart by nothing but their embedding: permuted ids with permuted embeddings give the same ranks."""
    workload = build(evaluate={"mask_seen": mask_seen})
    model, samples = build_model(workload).eval(), workload.evaluation_set("test")
    batch = samples.fetch(range(30), Draw(0, 0, []))
    expected = workload.predict(model, batch)["rank"]
    order = torch.cat(
        (torch.zeros(1, dtype=torch.int64), 1 + torch.randperm(40, generator=torch.Generator().manual_seed(1)))
    )
    named = ("items", "answers", "seen")
    renamed = {name: order[value] if name in named else value for name, value in batch.items()}
    with torch.no_grad():
        weight = model.item_embedding.weight
        weight[order] = weight.clone()
    assert torch.equal(workload.predict(model, renamed)["rank"], expected)


def test_sampled_candidates_make_an_easier_task(tmp_path):
    data = write_random_data(tmp_path / "random.txt")
    workload = build(data, evaluate={"candidates": "sampled", "num_candidates": 19})
    metrics = evaluate(workload, build_model(workload))
    assert metrics["hr_10"] == pytest.approx(10 / 20, abs=0.13)
    name, baseline = workload.baseline("test", 10**9)
    assert name == "popularity"
    assert baseline["hr_10"] == pytest.approx(10 / 20, abs=0.13)


def test_time_is_refused_where_the_data_has_none(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("".join(f"{user} {item}\n" for user in range(5) for item in range(6)))
    with pytest.raises(ConfigError, match=r"model\.time=true needs the time of every event") as error:
        build({"path": str(path)}, model={"time": True})
    assert "model.time=false" in error.value.problems[0].do


def test_only_mhc_has_something_to_observe():
    workload = build(model={"mhc": True})
    model = build_model(workload)
    workload.loss(model, workload.train_set().fetch([0, 1, 2], Draw(0, 0, [])))
    assert 0 <= workload.observe(model)["mhc_deviation"] < 1e-4
    assert build().observe(build_model(build())) == {}


@pytest.mark.parametrize("loss", [{"kind": "ce"}, {"kind": "bce", "num_negatives": 8}])
def test_a_trained_model_scores_twice_popularity(loss):
    data = {"users": 800, "items": 300, "events_per_user": 20, "max_length": 20}
    workload = build(data, loss=loss, model={"width": 32, "blocks": 1, "dropout": 0.0})
    popularity = workload.baseline("test", 10**9)[1]["ndcg_10"]
    reached = evaluate(workload, train(workload, epochs=8 if loss["kind"] == "ce" else 15, lr=1e-2))["ndcg_10"]
    assert popularity > 0.05
    assert reached > 2 * popularity


def test_the_shipped_configuration_is_sound():
    shipped = Path(paceline.__file__).parent / "configs" / "sasrec.yaml"
    config = SasrecConfig.model_validate(yaml.safe_load(shipped.read_text()))
    assert check(config) == []
    workload = SasrecWorkload(config)
    assert workload.objective.metric == "ndcg_10"
    assert len(workload.train_set()) > 1900


@pytest.mark.shared_data
def test_real_data_splits(real_data):
    workload = build({"path": str(real_data / "ml-1m.txt"), "max_length": 200})
    assert len(workload.train_set()) == len(workload.evaluation_set("test")) == 6040
    assert workload.details()["longest"] == 2277


def test_who_had_everything_does_not_look_perfect(tmp_path):
    """The old protocol has nothing to rank such a user's answer among."""
    path = tmp_path / "all.txt"
    path.write_text("".join(f"{user} {item}\n" for user in range(20) for item in range(5)))
    workload = build({"path": str(path)}, evaluate={"candidates": "sampled", "num_candidates": 3, "top_k": [1]})
    assert evaluate(workload, build_model(workload))["hr_1"] == 0
    assert workload.baseline("test", 10**9)[1]["hr_1"] == 0


def test_more_candidates_than_items_are_refused():
    with pytest.raises(ConfigError, match="of a catalogue of 40 items"):
        build(evaluate={"candidates": "sampled", "num_candidates": 40})


@pytest.mark.parametrize("model", [{}, {"mhc": True, "streams": 2}, {"time": True}, {"attention_dropout": 0.2}])
def test_the_attention_that_is_told_of_is_the_largest_that_runs(model, monkeypatch):
    workload = build(SMALL | {"users": 150}, model={"width": 12, "heads": 2, "blocks": 1, **model})
    training, evaluation = workload.attention_calls("cpu", micro_batch=48, block=40)
    seen = []

    def spy(query, key, value, *, is_causal, dropout):
        seen.append((*query.shape, key.shape[-2], is_causal, dropout))
        return value

    def largest(run):
        seen.clear()
        run()
        return max(seen, key=lambda shape: shape[2])

    if model.get("time"):
        assert {training.kernels, evaluation.kernels} == {("eager",)}
        assert "model.time=true" in training.why
        return
    monkeypatch.setitem(KERNELS, "sdpa", spy)
    net, samples, answers = build_model(workload), workload.train_set(), workload.evaluation_set("test")
    longest = np.argsort(-workload._windows.lengths)[:48].tolist()
    shape = largest(lambda: workload.loss(net.train(), samples.fetch(longest, Draw(0, 0, longest))))
    told = (training.rows, training.heads, training.queries, training.width, training.keys)
    assert (*told, training.is_causal, training.dropout) == shape
    assert training.dropout == model.get("attention_dropout", 0.0)
    shape = largest(lambda: workload.predict(net.eval(), answers.fetch(range(150), Draw(0, 0, []))))
    told = (evaluation.rows, evaluation.heads, evaluation.queries, evaluation.width, evaluation.keys)
    assert (*told, evaluation.is_causal, 0.0) == shape
    dense, _ = workload.attention_calls("cuda", micro_batch=48, block=40)
    assert (dense.rows, dense.width) == (48, 8), "a GPU takes all rows at once, and widens heads to a multiple of 8"
