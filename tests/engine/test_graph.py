"""CUDA graphs without CUDA: when they are used, what recording leaves untouched, how gradients are handed over. tests/gpu has the real ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from paceline.config.sections import Train
from paceline.engine import build, step
from paceline.engine.build import build_trainer
from paceline.engine.graph import Graphs, add_gradients, choose_graph, signature_of
from paceline.files import read_records
from paceline.telemetry.events import QuietLog
from paceline.telemetry.tables import read_table
from tests.engine.conftest import Regression


class Noisy(torch.nn.Module):
    """Dropout, a buffer that every forward changes, a parameter that no loss uses."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
        self.idle = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls.add_(1)
        return self.outer(torch.nn.functional.dropout(self.inner(x), 0.5, self.training))


class NoisyRegression(Regression):
    def build_model(self, setting) -> Noisy:
        self.model = Noisy()
        return self.model


class FakeRecorder:
    """Records by remembering what to call. As on CUDA, recording changes nothing; a replay reads the gradients that were there when it
    was recorded, and writes into the tensors of the recording, which hold nothing before."""

    def __init__(self, find_model: Callable[[], torch.nn.Module]) -> None:
        self._find_model = find_model
        self.find_optimizer: Callable[[], torch.optim.Optimizer | None] = lambda: None
        self.scratch_bytes = 0
        self.recordings = self.warm_ups = self.replays = 0

    def warm_up(self, compute: Callable[[], Any]) -> None:
        self.warm_ups += 1
        compute()

    def record(self, compute: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        self.recordings += 1
        parameters, optimizer = list(self._find_model().parameters()), self.find_optimizer()
        moments = [] if optimizer is None else [m for state in optimizer.state.values() for m in state.values()]
        given = [p.grad for p in parameters]
        lasting = [tensor for tensor in (*parameters, *moments, *given) if tensor is not None]
        before = [tensor.detach().clone() for tensor in lasting]
        result = compute()
        places = self._results(result, parameters)
        for place in places:
            place.fill_(float("nan"))
        with torch.no_grad():
            for tensor, value in zip(lasting, before, strict=True):
                tensor.copy_(value)

        def replay() -> None:
            self.replays += 1
            kept = [p.grad for p in parameters]
            for parameter, gradient in zip(parameters, given, strict=True):
                parameter.grad = gradient
            results = self._results(compute(), parameters)
            for place, value in zip(places, results, strict=True):
                place.copy_(value)
            for parameter, gradient in zip(parameters, kept, strict=True):
                parameter.grad = gradient

        return replay, result

    def _results(self, result: Any, parameters: list[torch.nn.Parameter]) -> list[torch.Tensor]:
        returned = [result] if isinstance(result, torch.Tensor) else list(result)
        return [*returned, *(p.grad for p in parameters if p.grad is not None)]


class BrokenRecorder(FakeRecorder):
    """Fails at the shape of the fourth step: its third recording, after the first shape's micro-step and update."""

    good = 2

    def record(self, compute: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        if self.recordings >= self.good:
            raise RuntimeError("operation not permitted when stream is capturing\nmore of it")
        return super().record(compute)


class NoUpdates(BrokenRecorder):
    """Fails at the first update."""

    good = 1


@dataclasses.dataclass
class Result:
    weights: dict[str, torch.Tensor]
    losses: list[tuple[float, float]]
    events: list[dict]
    recorder: FakeRecorder | None


@pytest.fixture
def train(make_context, monkeypatch) -> Callable[..., Result]:
    """train(FakeRecorder, micro_batch=5) -> a small run with graphs; without a recorder: without graphs."""

    def run(kind: type[FakeRecorder] | None = None, **train: Any) -> Result:
        workload, recorder = NoisyRegression(), None
        if kind is not None:
            recorder = kind(lambda: workload.model)
            monkeypatch.setattr(build, "choose_graph", lambda *facts: (True, "a test"))
            monkeypatch.setattr(step, "Recorder", lambda device: recorder)
        sections = {
            # A rate that fp32 has exactly: a recorded update reads it from the device.
            "train": {"max_steps": 9, "global_batch": 13, "optimizer": {"weight_decay": 0.1, "lr": 2**-10}} | train,
            "telemetry": {"tensorboard": False, "log_every": 1},
            "evaluate": {"every_epochs": None},
        }
        context = make_context(sections)
        rows = len(read_table(context.layout.metrics))
        events = len(list(read_records(context.layout.events)))
        trainer = build_trainer(context, workload)
        if recorder is not None:
            recorder.find_optimizer = lambda: trainer._step._optimizer
        trainer.run()
        trainer.close()
        monkeypatch.undo()
        return Result(
            {name: value.clone() for name, value in workload.model.state_dict().items()},
            [(row["loss"], row["grad_norm"]) for row in read_table(context.layout.metrics)[rows:]],
            list(read_records(context.layout.events))[events:],
            recorder,
        )

    return run


def assert_same(one: Result, other: Result) -> None:
    assert one.losses == other.losses
    for name, value in one.weights.items():
        assert torch.equal(value, other.weights[name]), name


@pytest.mark.parametrize(
    ("requested", "facts", "effective", "because"),
    [
        ("auto", ("cuda", False, "bf16", True), True, "keep their shapes"),
        (True, ("cuda", False, "fp32", True), True, "as requested"),
        (False, ("cuda", False, "bf16", True), False, "as requested"),
        ("auto", ("cpu", False, "fp32", True), False, "no GPU"),
        (True, ("cpu", False, "fp32", True), False, "no GPU"),
        (True, ("cuda", True, "bf16", True), False, "between ranks"),
        (True, ("cuda", False, "fp16", True), False, "scale"),
        (True, ("cuda", False, "bf16", False), False, "change their shapes"),
        (True, ("cuda", False, "bf16", True, True, True), False, "loss of the whole step"),
        (True, ("cuda", False, "bf16", True, True, False, True), False, "rows of its tables"),
    ],
)
def test_graphs_are_used_where_they_can_be(requested, facts, effective, because):
    chosen, reason = choose_graph(Train(graph=requested), *facts)
    assert chosen is effective
    assert because in reason


@pytest.mark.parametrize(
    ("train", "because"),
    [({"activation_checkpointing": True}, "activation checkpointing"), ({"compile": {"enabled": True}}, "dropout")],
)
def test_recomputed_and_compiled_models_are_not_recorded(train, because):
    chosen, reason = choose_graph(Train.model_validate(train), "cuda", False, "bf16", True)
    assert not chosen
    assert because in reason


def test_a_compiled_model_that_draws_nothing_is_recorded():
    train = Train.model_validate({"compile": {"enabled": True}})
    assert choose_graph(train, "cuda", False, "bf16", True, draws_numbers=False)[0]


def test_the_choice_is_recorded(train):
    (choice,) = [event for event in train(graph=True).events if event.get("about") == "train.graph"]
    assert (choice["requested"], choice["effective"], choice["reason"]) == (True, False, "no GPU")


def test_a_signature_is_names_shapes_and_types():
    batch = {"b": torch.zeros(2, 3), "a": torch.zeros(2, dtype=torch.int64)}
    same = {"a": torch.ones(2, dtype=torch.int64), "b": torch.ones(2, 3)}
    assert signature_of(batch) == signature_of(same)
    for other in ({"b": batch["b"]}, batch | {"b": torch.zeros(3, 3)}, batch | {"a": torch.zeros(2)}):
        assert signature_of(other) != signature_of(batch)


def test_gradients_add_up_over_micro_steps_and_the_last_ones_are_not_copied():
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
    gradients = [torch.full((2,), float(index)) for index in range(3)]
    add_gradients(parameters, gradients, is_last=False)
    for gradient in gradients:
        gradient += 10  # the next replay writes here
    add_gradients(parameters[:2], gradients[:2], is_last=True)
    assert [p.grad[0].item() for p in parameters] == [10, 12, 2]
    fresh = torch.nn.Parameter(torch.zeros(2))
    add_gradients([fresh], gradients[:1], is_last=True)
    assert fresh.grad is gradients[0]


@pytest.mark.parametrize(
    ("options", "num_shapes", "num_updates"),
    [
        ({}, 2, 2),  # 13 samples, and 1 in the last batch of the 40
        ({"clip_norm": 0.1}, 2, 2),
        ({"optimizer": {"lr": 2**-10, "ema": 0.9}}, 2, 0),
        ({"optimizer": {"lr": 2**-10, "fused": False}}, 2, 0),
        ({"micro_batch": 5}, 3, 0),  # 4 and 5; then two dummies and 1
        ({"micro_batch": 5, "clip_norm": 0.1}, 3, 0),
        ({"accumulate": 20}, 1, 0),
    ],
)
def test_replayed_steps_are_the_steps_without_graphs(train, options, num_shapes, num_updates):
    replayed = train(FakeRecorder, **options)
    assert_same(replayed, train(**options))
    assert replayed.recorder.recordings == num_shapes + num_updates
    assert replayed.recorder.warm_ups == 3 * num_shapes, "the first update of each shape is one"
    if num_updates:
        assert replayed.recorder.replays == 9 + 9 - num_shapes
    else:
        assert replayed.recorder.replays > 9 - num_shapes
    assert torch.equal(replayed.weights["idle"], torch.ones(3)), "no gradient, and so no decay"


def test_the_first_sight_of_a_shape_is_replayed_already(train):
    """Else a run that was resumed after it would compute otherwise than one that was not."""
    assert train(FakeRecorder, max_steps=1).recorder.replays == 1


def test_recording_leaves_everything_as_it_was():
    torch.manual_seed(0)
    model = Noisy()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for parameter in model.inner.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)

    def compute(batch):
        loss = model(batch["x"]).sum()
        loss.backward()
        return loss.detach(), torch.tensor(float(len(batch["x"])))

    graphs = Graphs(compute, model, FakeRecorder(lambda: model), QuietLog(), "auto")
    batch = {"x": torch.ones(2, 4)}
    graph = graphs.find(batch)
    assert graph is graphs.find({"x": torch.zeros(2, 4)}), "recorded once"
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, torch.full_like(p, 7.0)) for p in model.inner.parameters())
    assert model.outer.weight.grad is None
    batch["x"].fill_(5.0)
    _, weight = graph.replay({"x": torch.ones(2, 4)})
    assert float(weight) == 2
    assert model.outer.bias.grad is None
    graph.leave_gradients(is_last=True)
    assert model.outer.bias.grad.item() == 2


def test_what_cannot_be_recorded_runs_without_graphs(train):
    broken = train(BrokenRecorder)
    assert_same(broken, train())
    (warning,) = [event for event in broken.events if event["kind"] == "warning"]
    assert "without CUDA graphs" in warning["what"]
    assert warning["why"].endswith("not permitted when stream is capturing")
    choices = [event["effective"] for event in broken.events if event.get("about") == "train.graph"]
    assert choices == [True, False]
    assert broken.recorder.replays == 3 + 2, "none after the failure, which the fourth step's shape brought"


def test_an_update_that_cannot_be_recorded_ends_all_graphs(train):
    """A failed recording leaves torch's generator behind, which the graphs before it no longer follow."""
    broken = train(NoUpdates, global_batch=40)
    assert_same(broken, train(global_batch=40))
    (warning,) = [event for event in broken.events if event["kind"] == "warning"]
    assert "without CUDA graphs" in warning["what"]
    assert warning["why"].startswith("the update cannot be recorded: operation not permitted")
    assert broken.recorder.replays == 2, "none after the second step's update"


def test_shapes_without_end_run_without_graphs(make_context):
    model = Noisy()

    def compute(batch):
        loss = model(batch["x"]).sum()
        loss.backward()
        return loss.detach(), loss.detach()

    context = make_context()
    recorder = FakeRecorder(lambda: model)
    graphs = Graphs(compute, model, recorder, context.events, "auto")
    found = [graphs.find({"x": torch.ones(1 + size % 12, 4)}) is not None for size in range(24)]
    assert found == ([True] * 8 + [False] * 4) * 2
    assert recorder.recordings == 8
    (warning,) = read_records(context.layout.events)
    assert "more than 8 shapes" in warning["why"]
