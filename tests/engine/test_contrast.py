"""A loss of the whole step: that of one process which sees the whole batch, however the step is cut over ranks and micro-steps."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import pytest
import torch

from paceline.engine.build import build_trainer
from paceline.engine.order import SampleOrder
from paceline.engine.ranks import Ranks
from paceline.engine.seeding import seed_model
from paceline.errors import NonFiniteError, UsageError
from paceline.files import read_records
from paceline.telemetry.tables import read_table
from paceline.workload import Embedded, Workload, check_workload
from tests.engine.conftest import build_context
from tests.engine.towers import Alignment

GLOBAL_BATCH = 13
"""of 29 samples: the third step of an epoch has 3, fewer than there are ranks"""
STEPS = 3
SECTIONS = {
    "train": {
        "max_steps": STEPS,
        "global_batch": GLOBAL_BATCH,
        "optimizer": {"name": "sgd", "lr": 0.3, "momentum": 0.9},
    },
    "telemetry": {"tensorboard": False, "log_every": 1, "ledger": True},
    "evaluate": {"every_epochs": None},
}


def expect() -> tuple[dict[str, torch.Tensor], list[float]]:
    """Weights and losses by autograd of the whole batch, without the engine."""
    workload = Alignment()
    seed_model(0)
    model = workload.build_model(None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    order = SampleOrder(29, GLOBAL_BATCH, STEPS, 0)
    losses = []
    for step in range(STEPS):
        embedded = workload.embed(model, workload.train_set().fetch(order.batch(0, step), None))
        loss_sum, weight = workload.contrast(embedded.rows, embedded.shared)
        optimizer.zero_grad()
        (loss_sum / weight).backward()
        optimizer.step()
        losses.append(float(loss_sum.detach() / weight))
    return {name: value.detach().clone() for name, value in model.state_dict().items()}, losses


def train(root: Path, ranks: Ranks | None = None, workload=None, stage: int = 0, mode: str = "fp32", **train):
    """(weights, losses, trainer) of a run."""
    own = vars(ranks) if ranks is not None else {}
    sections = SECTIONS | {"train": SECTIONS["train"] | train, "parallel": {"zero_stage": stage}}
    sections |= {"precision": {"mode": mode, "tf32": False}}
    context = build_context(root, sections, **own)
    trainer = build_trainer(context, workload or Alignment())
    trainer.run()
    trainer.close()
    with trainer._strategy.whole() as model:
        weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    losses = [row["loss"] for row in read_table(context.layout.metrics)] if context.ranks.is_first else []
    return weights, losses, trainer


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], why: object = "") -> None:
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=0, atol=1e-5, msg=lambda text, name=name: f"{name} {why} {text}"
        )


@pytest.mark.parametrize(
    "options",
    [
        {"micro_batch": 13},
        {"micro_batch": 7},
        {"micro_batch": 5},
        {"micro_batch": 1},
        {"micro_batch": 5, "activation_checkpointing": True},
        {"micro_batch": 5, "clip_norm": 1e6, "graph": True},
    ],
    ids=str,
)
def test_one_rank(tmp_path, options):
    weights, losses = expect()
    found, reported, _ = train(tmp_path, **options)
    assert reported == pytest.approx(losses, rel=1e-5)
    assert_close(found, weights)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_ranks(on_ranks, count):
    on_ranks(count, every_stage)


def every_stage(ranks: Ranks) -> None:
    weights, losses = expect()
    for stage in range(4):
        for accumulate in (1, 2, 3):
            with tempfile.TemporaryDirectory() as root:
                found, reported, trainer = train(Path(root), ranks, stage=stage, accumulate=accumulate)
                ledger = list(read_records(trainer._context.layout.ledger(ranks.rank)))
            if ranks.is_first:
                assert reported == pytest.approx(losses, rel=1e-5), (stage, accumulate)
            assert_close(found, weights, (stage, accumulate))
            for step, loss in enumerate(losses, 1):
                sums = ranks.gather_floats(
                    [sum(r[name] for r in ledger if r["step"] == step) for name in ("loss_sum", "weight")]
                ).sum(0)
                assert float(sums[0] / sums[1]) == pytest.approx(loss, rel=1e-5)
                assert float(sums[1]) == (GLOBAL_BATCH if step < 3 else 3)


class Recording(Alignment):
    """Keeps the rows of every forward of a run with dropout."""

    def __init__(self) -> None:
        super().__init__(dropout=0.5)
        self.forwards: list[tuple[list[int], bool, torch.Tensor]] = []

    def embed(self, model, batch):
        embedded = super().embed(model, batch)
        self.forwards.append((batch["ids"].tolist(), torch.is_grad_enabled(), embedded.rows.detach().clone()))
        return embedded


@pytest.mark.parametrize("compiled", [False, True])
def test_a_second_pass_draws_what_the_first_has_drawn(tmp_path, monkeypatch, compiled):
    monkeypatch.setattr("paceline.engine.compilation.BACKEND", "eager")
    workload = Recording()
    _, _, trainer = train(tmp_path, None, workload, max_steps=1, accumulate=3, compile={"enabled": compiled})
    passes = workload.forwards[-5:]  # before them, the warm-up's
    assert [has_grad for _, has_grad, _ in passes] == [False, False, True, True, True]
    second, third, first, second_again, third_again = (rows for _, _, rows in passes)
    assert torch.equal(second, second_again)
    assert torch.equal(third, third_again)
    assert [len(rows) for rows in (first, second, third)] == [4, 4, 5]
    events = list(read_records(trainer._context.layout.events))
    assert not [event for event in events if event["kind"] == "warning"]
    assert [e["reason"] for e in events if e.get("about") == "loss"] == ["2 of 3 micro-steps are embedded twice"]
    # Another step has other masks: the two passes were not equal for want of dropout.
    batch = workload.train_set().fetch(passes[0][0], None)
    trainer._strategy.model.eval()
    assert not torch.allclose(Alignment.embed(workload, trainer._strategy.model, batch).rows, second, atol=1e-2)


class Forgetful(Alignment):
    """Never draws the same again."""

    generator = torch.Generator().manual_seed(0)

    def embed(self, model, batch):
        embedded = super().embed(model, batch)
        return Embedded(embedded.rows + torch.randn(embedded.rows.shape, generator=self.generator), embedded.shared)


def test_a_second_pass_that_differs_is_told(tmp_path):
    *_, trainer = train(tmp_path, None, Forgetful(), micro_batch=7)
    (warning,) = [event for event in read_records(trainer._context.layout.events) if event["kind"] == "warning"]
    assert "does not repeat the first" in warning["what"]


@pytest.mark.parametrize("mode", ["bf16", "fp16"])
def test_half_precision_learns_the_same(tmp_path, mode):
    weights, losses = expect()
    found, reported, _ = train(tmp_path, mode=mode, micro_batch=5)
    assert reported == pytest.approx(losses, rel=0.02)
    for name, value in weights.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0.03)


class Broken(Alignment):
    """A sample's row is not a number."""

    def __init__(self, sample: int) -> None:
        super().__init__()
        self._sample = sample

    def embed(self, model, batch):
        embedded = super().embed(model, batch)
        bad = (batch["ids"] == self._sample).nonzero().flatten()
        rows = embedded.rows.index_fill(0, bad, float("nan"))
        return Embedded(rows, embedded.shared)


class Slow(Alignment):
    """One rank is late with its rows."""

    def __init__(self, is_late: bool) -> None:
        super().__init__()
        self._is_late = is_late

    def embed(self, model, batch):
        time.sleep(0.3 if self._is_late else 0)
        return super().embed(model, batch)


def test_who_is_to_blame(on_ranks):
    on_ranks(3, blame)


def blame(ranks: Ranks) -> None:
    sample = int(SampleOrder(29, GLOBAL_BATCH, STEPS, 0).batch(0, 1)[-1])
    with tempfile.TemporaryDirectory() as root, pytest.raises(NonFiniteError, match=r"step 2 .* rank 2\n"):
        train(Path(root), ranks, Broken(sample), accumulate=2)
    with tempfile.TemporaryDirectory() as root:
        *_, trainer = train(
            Path(root), ranks, Slow(ranks.rank == 1), max_steps=2
        )  # in the first, DDP lays out its buckets anew
        waits = ranks.gather_floats([trainer._step.losses.read_wait_ms()])[:, 0].tolist()
    assert waits[1] < min(waits[0], waits[2])
    assert min(waits[0], waits[2]) > 100


def test_a_killed_run_goes_on_with_the_same_bits(on_ranks):
    on_ranks(3, resume)


class Killed(Alignment):
    """Ends the run in the middle of a step, on all ranks."""

    calls = 0

    def embed(self, model, batch):
        self.calls += 1
        if self.calls == 16:  # in the fifth step: three a step, and two in the warm-up
            raise KeyboardInterrupt
        return super().embed(model, batch)


def resume(ranks: Ranks) -> None:
    sections = SECTIONS | {
        "train": SECTIONS["train"] | {"max_steps": 9, "accumulate": 2},
        "checkpoint": {"every_steps": 2, "asynchronous": False},
        "parallel": {"bucket_mb": 0.0003},
    }
    (root,) = share(ranks, tempfile.mkdtemp() if ranks.is_first else "")

    def run(name: str, workload: Alignment) -> dict[str, torch.Tensor]:
        folder = Path(root) / name
        folder.mkdir(exist_ok=True)
        trainer = build_trainer(build_context(folder, sections, **vars(ranks)), workload)
        try:
            trainer.run()
        finally:
            trainer.close()
        assert trainer.state.step == 9
        return {name: value.clone() for name, value in trainer._strategy.model.state_dict().items()}

    whole = run("whole", Alignment(dropout=0.3))
    with pytest.raises(KeyboardInterrupt):
        run("killed", Killed(dropout=0.3))
    again = run("killed", Alignment(dropout=0.3))
    plans = [event for event in read_records(Path(root) / "killed" / "events.jsonl") if event["kind"] == "plan"]
    assert {event["start_step"] for event in plans} == {0, 4}
    assert all(torch.equal(again[name], value) for name, value in whole.items())
    ranks.close()
    if ranks.is_first:
        shutil.rmtree(root)


def share(ranks: Ranks, *words: str) -> list[str]:
    """Rank 0's words, on every rank."""
    message = list(words)
    torch.distributed.broadcast_object_list(message, src=0)
    return message


def test_rows_that_are_not_those_of_the_samples_are_refused(tmp_path):
    class Wrong(Alignment):
        def embed(self, model, batch):
            embedded = super().embed(model, batch)
            return Embedded(embedded.rows[1:], embedded.shared)

    with pytest.raises(UsageError, match=r"a batch of 13 samples has rows of shape \(12, 2, 6\)"):
        train(tmp_path, None, Wrong())


@pytest.mark.parametrize(
    ("name", "words"), [("embed", "left 4 × 6, right 4 × 6, ids 4"), ("contrast", "rows 13 × 2 × 6, shared 1")]
)
def test_running_out_of_memory_names_what_it_ran_out_with(tmp_path, name, words):
    class Hungry(Alignment):
        def __getattribute__(self, asked):
            if asked == name:
                return self.refuse
            return super().__getattribute__(asked)

        def refuse(self, *_):
            raise torch.OutOfMemoryError("no")

    with pytest.raises(torch.OutOfMemoryError) as caught:
        train(tmp_path, None, Hungry(), accumulate=3)
    assert words in "".join(caught.value.__notes__)


def test_a_workload_that_contrasts_needs_no_loss():
    assert check_workload(Alignment(), "alignment")

    class Neither(Workload):
        objective, metric_names, splits = Alignment.objective, Alignment.metric_names, Alignment.splits
        build_model, train_set, evaluation_set = Alignment.build_model, Alignment.train_set, Alignment.evaluation_set
        embed, predict, metrics = Alignment.embed, Alignment.predict, Alignment.metrics

    with pytest.raises(UsageError, match="no loss"):
        check_workload(Neither(), "alignment")
