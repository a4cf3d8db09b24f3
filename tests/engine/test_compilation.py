"""torch.compile with stand-ins for its compiler: announced, tried, given up without a trace in the numbers. tests/gpu has the real one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from paceline.engine import compilation
from paceline.engine.build import build_trainer
from paceline.engine.compilation import choose_dynamic
from paceline.files import read_records
from paceline.telemetry.pulse import PHASES
from paceline.telemetry.tables import read_table
from tests.engine.conftest import Regression, build_context

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo looks at it where a graph breaks


class Dropping(Regression):
    """Dropout on both sides of a graph break: random numbers are drawn before the second part is compiled."""

    def build_model(self, setting) -> torch.nn.Module:
        class Model(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner, self.outer = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)

            def forward(self, x):
                hidden = torch.nn.functional.dropout(self.inner(x), 0.5, self.training)
                torch._dynamo.graph_break()
                return self.outer(torch.nn.functional.dropout(hidden.tanh(), 0.5, self.training))

        return Model()


@dataclass
class Compiler:
    """Compiles by doing nothing, and fails where it is told to."""

    fails_at: int | None = None
    phases: list[tuple[int, str]] = field(default_factory=list)
    pulse: Any = None

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        self.phases.append((self.pulse.step, self.pulse.phase))
        if len(self.phases) == self.fails_at:
            raise ZeroDivisionError("no kernel for this")
        return graph.forward


@dataclass
class Result:
    losses: list[float]
    untimed: list[int]
    """steps whose rows have no times"""
    metrics: list[float]
    events: list[dict[str, Any]]
    phases: list[tuple[int, str]]

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]


@pytest.fixture
def train(make_context, monkeypatch) -> Callable[..., Result]:
    """A small run; 13 samples a step, and 1 in the last one of an epoch: two shapes."""

    def run(compiler: Compiler | str | None, workload: Regression | None = None, **options: Any) -> Result:
        torch._dynamo.reset()
        sections = {
            "train": {"max_steps": 6, "global_batch": 13, "compile": {"enabled": compiler is not None} | options},
            "telemetry": {"tensorboard": False, "log_every": 1},
            "evaluate": {"every_steps": 3},
        }
        context = make_context(sections)
        if isinstance(compiler, Compiler):
            compiler.pulse = context.pulse
        monkeypatch.setattr(compilation, "BACKEND", compiler)
        events, rows = (len(list(read(path))) for read, path in _files(context))
        trainer = build_trainer(context, workload or Dropping())
        try:
            trainer.run()
        finally:
            trainer.close()
        return Result(
            [row["loss"] for row in read_table(context.layout.metrics)[rows:]],
            [row["step"] for row in read_table(context.layout.metrics)[rows:] if row["step_ms"] is None],
            [row["error"] for row in read_table(context.layout.validation)][-2:],
            list(read_records(context.layout.events))[events:],
            compiler.phases if isinstance(compiler, Compiler) else [],
        )

    return run


def _files(context):
    layout = context.layout
    return ((read_records, layout.events), (lambda path: read_table(path) if path.exists() else [], layout.metrics))


def test_a_compiled_run_is_announced_and_trains_the_same(train):
    eager, compiled = train(None), train(Compiler(), dynamic=False)
    assert compiled.losses == eager.losses
    assert compiled.metrics == eager.metrics
    choices = {event["about"]: (event["requested"], event["effective"]) for event in compiled.told("choice")}
    assert choices["train.compile.enabled"] == (True, True)
    assert choices["train.compile.dynamic"] == (False, False)
    # Two parts for each of two shapes; the first before step 1, the second when it is first met. Nothing for evaluations.
    assert compiled.phases == [(0, "compile")] * 2 + [(4, "compile")] * 2
    assert [event["step"] for event in compiled.told("compile")] == [0, 4], "one for all the parts of a forward"
    assert all(event["seconds"] > 0 for event in compiled.told("compile"))
    assert not eager.told("compile")
    assert (eager.untimed, compiled.untimed) == ([], [4]), "the time of a compiler is not that of training"
    assert not compiled.told("warning")


@pytest.mark.parametrize(("fails_at", "step"), [(1, 0), (2, 0), (4, 4)])
def test_what_cannot_be_compiled_runs_eagerly_with_the_same_numbers(train, fails_at, step):
    eager, failed = train(None), train(Compiler(fails_at), dynamic=False)
    assert failed.losses == eager.losses
    (warning,) = failed.told("warning")
    assert "without torch.compile" in warning["what"]
    assert "no kernel for this" in warning["why"]
    choices = [event["effective"] for event in failed.told("choice") if event["about"] == "train.compile.enabled"]
    assert choices == ([True, False] if step else [False])
    assert failed.phases[-1][0] == step
    assert len(failed.phases) == fails_at, "not tried again"


class Stacked(Regression):
    """Four blocks with dropout in a list, three of them built alike."""

    def build_model(self, setting) -> torch.nn.Module:
        class Block(torch.nn.Module):
            def __init__(self, width: int) -> None:
                super().__init__()
                self.inner = torch.nn.Linear(4, width)
                self.outer = torch.nn.Linear(width, 4)

            def forward(self, x):
                return x + self.outer(torch.nn.functional.dropout(self.inner(x).tanh(), 0.5, self.training))

        class Model(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.blocks = torch.nn.ModuleList([Block(width) for width in (8, 8, 8, 5)])
                self.end = torch.nn.Linear(4, 1)

            def forward(self, x):
                for block in self.blocks:
                    x = block(x)
                return self.end(x)

        return Model()


def test_blocks_that_are_alike_are_compiled_once(train):
    eager, compiled = train(None, Stacked()), train(Compiler(), Stacked(), dynamic=False, scope="blocks")
    assert compiled.losses == eager.losses
    assert compiled.metrics == eager.metrics
    # The first, whose input has no gradient, the two that are like it otherwise, and the narrow one; for both shapes.
    assert compiled.phases == [(0, "compile")] * 3 + [(4, "compile")] * 3
    choices = {event["about"]: (event["requested"], event["effective"]) for event in compiled.told("choice")}
    assert choices["train.compile.scope"] == ("blocks", "blocks")
    assert choices["train.compile.enabled"] == (True, True)


@pytest.mark.parametrize("fails_at", [1, 2, 4])
def test_one_block_that_cannot_be_compiled_gives_up_all(train, fails_at):
    """In the middle of a forward, whose first blocks have drawn random numbers already."""
    eager, failed = train(None, Stacked()), train(Compiler(fails_at), Stacked(), dynamic=False, scope="blocks")
    assert failed.losses == eager.losses
    assert "no kernel for this" in failed.told("warning")[0]["why"]
    assert len(failed.phases) == fails_at, "not tried again"


def test_a_model_without_blocks_is_compiled_whole(train):
    compiled = train(Compiler(), scope="blocks")
    (choice,) = (event for event in compiled.told("choice") if event["about"] == "train.compile.scope")
    assert choice["effective"] == "model"


def test_more_shapes_than_are_worth_it_are_told(train):
    with torch._dynamo.config.patch(recompile_limit=1):
        failed = train(Compiler(), dynamic=False)
    eager = train(None)
    assert failed.losses == eager.losses
    assert "yet another shape" in failed.told("warning")[0]["why"]


def test_an_error_of_the_model_stays_one(train):
    class Broken(Regression):
        def build_model(self, setting) -> torch.nn.Module:
            class Model(torch.nn.Linear):
                def forward(self, x):
                    raise KeyError("a mistake in the model")

            return Model(4, 1)

    with pytest.raises(KeyError, match="a mistake in the model"):
        train(Compiler(), Broken())


def test_forward_and_backward_are_compiled_at_once(train, monkeypatch):
    """A backward that is compiled when it first runs could fail on one rank while the others wait for its gradients."""
    from torch._dynamo.backends.common import aot_autograd

    def refuse(graph, inputs):
        raise ZeroDivisionError("no backward for this")

    backend = aot_autograd(fw_compiler=lambda graph, _: graph.forward, bw_compiler=refuse)
    eager, failed = train(None), train(backend, dynamic=False)
    assert failed.losses == pytest.approx(eager.losses, rel=1e-6)
    assert "no backward for this" in failed.told("warning")[0]["why"]


@pytest.mark.parametrize(
    ("requested", "device", "is_static", "effective"),
    [
        ("auto", "cuda", True, False),
        ("auto", "cuda", False, True),
        ("auto", "cpu", True, True),
        (True, "cuda", True, True),
        (False, "cpu", False, False),
    ],
)
def test_shapes(requested, device, is_static, effective):
    assert choose_dynamic(requested, device, is_static)[0] is effective


def test_the_phase_has_a_place_in_the_record():
    assert PHASES.index("compile") == 10, "what is there already keeps its number"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_real_compiler_goes_on_with_the_same_bits(tmp_path):
    """A run of eight steps, and one that ends after four and goes on; dropout is drawn by the compiled kernels themselves."""

    class Small(Regression):
        def build_model(self, setting) -> torch.nn.Module:
            return torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 1))

    def go_on(name: str, max_steps: int) -> dict[str, torch.Tensor]:
        torch._dynamo.reset()
        sections = {
            "train": {"max_steps": max_steps, "global_batch": 13, "compile": {"enabled": True}},
            "telemetry": {"tensorboard": False, "log_every": 1},
            "evaluate": {"every_epochs": None},
            "checkpoint": {"enabled": True, "every_epochs": None},
        }
        (tmp_path / name).mkdir(exist_ok=True)
        context = build_context(tmp_path / name, sections)
        trainer = build_trainer(context, Small())
        trainer.run()
        trainer.close()
        kinds = [event["kind"] for event in read_records(context.layout.events)]
        assert "compile" in kinds
        assert "warning" not in kinds, "nothing was given up"
        return {key: value.clone() for key, value in trainer._strategy.model.state_dict().items()}

    whole = go_on("whole", 8)
    go_on("parts", 4)
    for key, value in go_on("parts", 8).items():
        assert torch.equal(value, whole[key]), key
