"""Tables: gradients of touched rows give the training that dense gradients and a row-by-row update give, however a step is cut."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from paceline.engine import compilation
from paceline.engine.build import build_trainer
from paceline.engine.order import SampleOrder
from paceline.engine.precision import Fp16
from paceline.engine.ranks import Ranks
from paceline.engine.rows import RowTable, _hash, find_tables
from paceline.engine.seeding import seed_model
from paceline.engine.strategies.deepspeed import find_kind
from paceline.errors import CheckpointError, ConfigError, UsageError
from paceline.files import read_records
from paceline.telemetry.tables import read_table
from tests.engine.conftest import build_context
from tests.engine.lookups import NUM_ITEMS, WIDTH, ListModel, ListRegression
from tests.engine.test_contrast import assert_close

GLOBAL_BATCH = 13
"""of 29 samples: the third step of an epoch has 3, fewer than there are ranks"""
STEPS = 6
RULE = {"name": "adamw", "lr": 0.05, "weight_decay": 0.1, "betas": (0.8, 0.9), "no_decay": ["kinds"]}
CLIP = 0.8


def expect(rule=None) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Weights and losses with dense gradients of the whole batch, and tables updated row by row in plain numbers."""
    rule = rule or RULE
    workload = ListRegression()
    seed_model(0)
    model = workload.build_model(None)
    for module in model.modules():
        if isinstance(module, RowTable):  # dense: another way than the engine's
            module.forward = lambda ids, table=module: look_up_densely(table, ids)
    tables = find_tables(model)
    dense = {name: p for name, p in model.named_parameters() if name not in tables}
    adam = torch.optim.AdamW(dense.values(), lr=rule["lr"], weight_decay=rule["weight_decay"], betas=rule["betas"])
    rows = {(name, row): [0, 0.0, 0.0] for name, weight in tables.items() for row in range(len(weight))}
    order, losses = SampleOrder(29, GLOBAL_BATCH, 3, 0), []
    for step in range(STEPS):
        batch = workload.train_set().fetch(order.batch(*divmod(step, 3)), None)
        loss_sum, weight = workload.loss(model, batch)
        model.zero_grad()
        (loss_sum / weight).backward()
        losses.append(float(loss_sum.detach() / weight))
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        adam.step()
        for name, table in tables.items():
            decay = 0.0 if "kinds" in name else rule["weight_decay"]
            for row in table.grad.abs().sum(1).nonzero().flatten().tolist():
                update_row(table.data[row], table.grad[row], rows[name, row], rule, decay)
    return {name: value.detach().clone() for name, value in model.state_dict().items()}, losses


def look_up_densely(table: RowTable, ids: torch.Tensor) -> torch.Tensor:
    if table.hash_rows is None:
        return table.weight[ids]
    first, second = _hash(ids, table.hash_rows)
    return table.weight[first] + table.weight[second]


def update_row(row: torch.Tensor, gradient: torch.Tensor, state: list, rule: dict, decay: float) -> None:
    beta1, beta2 = rule["betas"]
    state[0] += 1
    state[1] = beta1 * state[1] + (1 - beta1) * gradient
    state[2] = beta2 * state[2] + (1 - beta2) * gradient**2
    average, square = state[1] / (1 - beta1 ** state[0]), state[2] / (1 - beta2 ** state[0])
    row.mul_(1 - rule["lr"] * decay).sub_(rule["lr"] * average / (square.sqrt() + 1e-8))


def train(root: Path, ranks: Ranks | None = None, workload=None, *, parallel=None, sections=None, **train):
    """(weights, losses, trainer) of a run."""
    own = vars(ranks) if ranks is not None else {}
    settings = {
        "train": {"max_steps": STEPS, "global_batch": GLOBAL_BATCH, "clip_norm": CLIP, "optimizer": RULE} | train,
        "parallel": parallel or {},
        "telemetry": {"tensorboard": False, "log_every": 1},
        "evaluate": {"every_epochs": None},
        "precision": {"mode": "fp32", "tf32": False},
    } | (sections or {})
    context = build_context(root, settings, **own)
    trainer = build_trainer(context, workload or ListRegression())
    try:
        trainer.run()
    finally:
        trainer.close()
    with trainer._strategy.whole() as model:
        weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    losses = [row["loss"] for row in read_table(context.layout.metrics)] if context.ranks.is_first else []
    return weights, losses, trainer


@pytest.mark.parametrize(
    "options",
    [{"micro_batch": 13}, {"micro_batch": 5}, {"micro_batch": 1}, {"micro_batch": 5, "activation_checkpointing": True}],
    ids=str,
)
def test_one_rank(tmp_path, options):
    weights, losses = expect()
    found, reported, _ = train(tmp_path, **options)
    assert reported == pytest.approx(losses, rel=1e-5)
    assert_close(found, weights)


@pytest.mark.parametrize("count", [2, 3])
def test_ranks(on_ranks, count):
    on_ranks(count, every_stage)


def every_stage(ranks: Ranks) -> None:
    """The same training at each stage; what travels for the tables is what is counted, and nothing of their size travels besides."""
    weights, losses = expect()
    received = count_received(ranks)
    for stage in range(4):
        for accumulate in (1, 2):
            with tempfile.TemporaryDirectory() as root:
                parallel = {"zero_stage": stage, "check_every": 1}
                received.clear()
                found, reported, trainer = train(Path(root), ranks, parallel=parallel, accumulate=accumulate)
                (told,) = [e for e in read_records(trainer._context.layout.events) if e["kind"] == "tables"]
            if ranks.is_first:
                assert reported == pytest.approx(losses, rel=1e-5), (stage, accumulate)
            assert_close(found, weights, (stage, accumulate))
            if stage < 2:  # the others gather whole weights for an evaluation
                assert told["bytes"] == round(sum(received) / STEPS)
                ddp = trainer._strategy._wrapper.logger._get_ddp_logging_data().ints_map
                dense = [
                    p for name, p in trainer._strategy.model.named_parameters() if name not in trainer._strategy.tables
                ]
                assert ddp["total_parameter_size_bytes"] == sum(p.nbytes for p in dense)
            assert told["steps"] == STEPS
            assert told["dense_bytes"] == pytest.approx(
                2 * (ranks.world_size - 1) / ranks.world_size * 4 * WIDTH * (NUM_ITEMS + 7), abs=1
            )


def count_received(ranks: Ranks) -> list[int]:
    """From now on, the bytes that every gathering on all ranks brings to this one."""
    received: list[int] = []
    gather_parts = ranks.gather_parts

    def count(tensor, parts, to):
        if to is None:
            received.append((ranks.world_size - 1) * tensor.nbytes)
        return gather_parts(tensor, parts, to)

    Ranks.gather_parts = lambda self, tensor, parts, to: count(tensor, parts, to)
    return received


SAVING = {"checkpoint": {"every_steps": 3, "every_epochs": None}}


def test_another_number_of_ranks_goes_on(on_ranks):
    on_ranks(3, go_on)


def go_on(ranks: Ranks) -> None:
    """From one rank to three, at the stages of both kinds; and with the same number bit for bit."""
    weights, _ = expect()
    for stage in (1, 3):
        with shared_directory(ranks) as root:
            if ranks.is_first:
                (root / "run").mkdir()
                train(root / "run", sections=SAVING, max_steps=3)
                shutil.copytree(root / "run", root / "again")
            dist.barrier()
            parallel = {"zero_stage": stage, "check_every": 1}
            found, _, _ = train(root / "run", ranks, sections=SAVING, parallel=parallel)
            assert_close(found, weights, stage)
            train(root / "again", ranks, sections=SAVING, parallel=parallel, max_steps=4)
            again, _, trainer = train(root / "again", ranks, sections=SAVING, parallel=parallel)
            assert all(torch.equal(found[name], again[name]) for name in found), stage
            assert [e["step"] for e in read_records(trainer._context.layout.events) if e["kind"] == "resume"][-1] == 4
            dist.barrier()


@contextmanager
def shared_directory(ranks: Ranks) -> Iterator[Path]:
    made = [tempfile.mkdtemp() if ranks.is_first else ""]
    dist.broadcast_object_list(made)
    yield Path(made[0])
    dist.barrier()
    if ranks.is_first:
        shutil.rmtree(made[0])


def test_a_smaller_type_for_what_travels(on_ranks):
    on_ranks(2, compress)


def compress(ranks: Ranks) -> None:
    weights, _ = expect()
    for name in ("bf16", "fp16", "powersgd"):
        with tempfile.TemporaryDirectory() as root:
            parallel = {"compression": name, "check_every": 1, "powersgd": {"start_step": 2}}
            found, _, trainer = train(Path(root), ranks, parallel=parallel)
        far = max(float((found[key] - weights[key]).abs().max()) for key in trainer._strategy.tables)
        assert far < 0.3, name
        assert trainer._tables.dense_bytes == 4 * WIDTH * (NUM_ITEMS + 7) // (1 if name == "powersgd" else 2)


def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole, losses, trainer = train(tmp_path / "a", sections=SAVING, micro_batch=5)
    train(tmp_path / "b", sections=SAVING, micro_batch=5, max_steps=3)
    found, later, resumed = train(tmp_path / "b", sections=SAVING, micro_batch=5)
    assert later == losses
    for name, value in whole.items():
        assert torch.equal(found[name], value), name
    for name, value in trainer._tables.moments().items():
        assert torch.equal(resumed._tables.moments()[name], value), name
    steps = trainer._tables.moments()["step.items.weight"]
    assert steps[0] == 0, "padding is never touched"
    assert 0 < steps.max() <= STEPS
    with pytest.raises(CheckpointError, match="does not fit"):
        resumed._tables.load("exp_avg.items.weight", torch.zeros(3, WIDTH), "here")


class Broken(ListRegression):
    """Its loss is not a number in step 2."""

    calls = 0

    def loss(self, model, batch):
        self.calls += 1
        loss_sum, weight = super().loss(model, batch)
        return loss_sum * (float("nan") if self.calls == 2 else 1), weight


def test_a_step_that_is_left_out_leaves_the_rows(tmp_path):
    (tmp_path / "one").mkdir()
    one, *_ = train(tmp_path / "one", max_steps=1)
    (tmp_path / "two").mkdir()
    two, _, trainer = train(tmp_path / "two", workload=Broken(), max_steps=2, nonfinite="skip")
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert trainer._tables.moments()["step.items.weight"].max() == 1


def test_the_scale_of_fp16_is_taken_back(tmp_path, monkeypatch):
    def build(_, ranks, __):
        precision = Fp16(ranks)
        precision.loss_scale.fill_(256.0)  # nothing overflows, and no step is left out
        return precision

    rule = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    wide, *_ = train(tmp_path / "a", optimizer=rule)
    monkeypatch.setattr("paceline.engine.build.build_precision", build)
    narrow, _, trainer = train(tmp_path / "b", optimizer=rule)
    assert list(trainer._tables.moments()) == ["momentum_buffer.items.weight", "momentum_buffer.kinds.weight"]
    for name in trainer._strategy.tables:
        torch.testing.assert_close(narrow[name], wide[name], rtol=0, atol=2e-3)


def test_an_average_of_the_weights(tmp_path):
    found, _, trainer = train(tmp_path, optimizer=RULE | {"ema": 0.5})
    average = trainer._average.tensors()["items.weight"]
    assert torch.isfinite(average).all()
    assert not torch.equal(average, found["items.weight"])
    (note,) = [e for e in read_records(trainer._context.layout.events) if "whole tables" in e.get("what", "")]
    assert "train.optimizer.ema" in note["why"]


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo looks at it where a graph breaks
def test_a_compiled_model(tmp_path, monkeypatch):
    monkeypatch.setattr(compilation, "BACKEND", "aot_eager")
    weights, losses = expect()
    found, reported, trainer = train(tmp_path, compile={"enabled": True})
    assert reported == pytest.approx(losses, rel=1e-5)
    assert_close(found, weights)
    (choice,) = [e for e in read_records(trainer._context.layout.events) if e.get("about") == "train.compile.enabled"]
    assert choice["effective"] is True
    torch._dynamo.reset()


def test_where_there_is_nothing_but_tables(tmp_path):
    class Bare(ListRegression):
        def build_model(self, setting):
            return BareModel()

    *_, trainer = train(tmp_path, workload=Bare())
    assert trainer._tables.describe_traffic()["share"] == 1


class BareModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = RowTable(NUM_ITEMS, 1)
        self.spare = RowTable(3, 1)  # never asked for

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        return self.items(items).sum((1, 2))


class Tied(ListModel):
    """Scores all items by the weight itself."""

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        return super().forward(items) + self.items.weight.sum()


def test_a_dense_use_of_a_table_is_refused(tmp_path):
    class Misused(ListRegression):
        def build_model(self, setting):
            return Tied()

    with pytest.raises(UsageError, match=r"items\.weight is a dense one"):
        train(tmp_path, workload=Misused())


def test_deepspeed_is_refused(make_context):
    context = make_context()
    with pytest.raises(ConfigError, match=r"items\.weight is a table"):
        find_kind(1).build(ListModel(), context.ranks, context.config.parallel, context.events)


def test_tables_are_found_by_their_class():
    model = ListModel()
    assert list(find_tables(model)) == ["items.weight", "kinds.weight"]
    model.tied = RowTable(NUM_ITEMS, WIDTH)
    model.tied.weight = model.items.weight
    model.kinds.weight.requires_grad_(False)
    assert list(find_tables(model)) == ["items.weight"]


def test_hashed_rows_tell_numbers_apart():
    table = RowTable(20_000, 4, hash_rows=1_000)
    assert table.weight.shape == (1_000, 4)
    rows = table(torch.arange(20_000).view(100, 200))
    assert rows.shape == (100, 200, 4)
    assert float(rows.detach().std()) == pytest.approx(0.02, rel=0.1)
    pairs = _hash(torch.arange(20_000), 1_000).T
    assert len(pairs.unique(dim=0)) > 19_700
    assert torch.bincount(pairs.flatten(), minlength=1_000).float().std() < 1.2 * 40**0.5, "evenly"


@pytest.mark.parametrize("sizes", [(0, 4), (5, 0), (5, 4, 0), (2**31, 4)])
def test_a_table_without_rows_is_refused(sizes):
    with pytest.raises(UsageError, match="at least one row"):
        RowTable(*sizes)
