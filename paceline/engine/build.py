"""Builds a trainer from a context and a workload, in the order in which its parts depend on each other, and records each choice."""

from __future__ import annotations

from paceline.config.arithmetic import Length, plan_length
from paceline.engine.attention import choose_attention
from paceline.engine.context import Context
from paceline.engine.device_stats import peak_flops
from paceline.engine.effects import find_ineffective
from paceline.engine.evaluation import Evaluator
from paceline.engine.monitor import Monitor
from paceline.engine.optimizer import LearningRate, build_optimizer, find_unmatched
from paceline.engine.precision import build_precision
from paceline.engine.seeding import make_deterministic, seed_model
from paceline.engine.step import TrainStep
from paceline.engine.strategies.choice import build_strategy
from paceline.engine.timing import build_timer
from paceline.engine.trainer import Trainer
from paceline.errors import DataError
from paceline.workload import Setting, Workload


def build_trainer(context: Context, workload: Workload) -> Trainer:
    """Everything one run needs, ready to run."""
    config, ranks, events = context.config, context.ranks, context.events
    if config.run.deterministic:
        make_deterministic()
    num_samples = len(workload.train_set())
    if num_samples == 0:
        raise DataError("the training set is empty", "data", "check data.path and the filters of the data section")
    length = plan_length(config.train, num_samples)
    _record_plan(context, workload, length, num_samples)
    device = ranks.device
    events.choice("device", "auto", str(device), "this local rank's GPU" if device.type == "cuda" else "no GPU here")
    precision = build_precision(config.precision, ranks, events)
    attention = choose_attention(config.attention.impl, events)
    seed_model(config.run.seed)
    model = workload.build_model(Setting(device, attention)).to(device)
    strategy = build_strategy(model, ranks, config.parallel, events)
    optimizer = build_optimizer(model, config.train.optimizer, device, events)
    for name, reason in [*context.idle, *find_ineffective(context, precision.name)]:
        events.write("note", what=f"{name} has no effect here", why=reason)
    if "train.optimizer.no_decay" in context.given:
        for word in find_unmatched(model, config.train.optimizer.no_decay):
            events.write(
                "note",
                what=f"train.optimizer.no_decay: {word!r} has no effect here",
                why="no parameter's name contains it",
            )
    learning_rate = LearningRate(config.train, length.total_steps)
    timer = build_timer(device)
    step = TrainStep(context, workload, strategy, optimizer, precision, learning_rate, timer)
    evaluator = Evaluator(context, workload, strategy, precision)
    monitor = Monitor(context, workload, peak_flops(device, precision.name, config.precision.tf32))
    return Trainer(context, workload, strategy, length, step, learning_rate, evaluator, monitor, timer)


def _record_plan(context: Context, workload: Workload, length: Length, num_samples: int) -> None:
    plan = context.batch_plan
    context.events.write(
        "plan",
        world_size=plan.world_size,
        num_samples=num_samples,
        start_step=0,
        accumulate=plan.accumulate,
        slices=plan.sizes(),
        steps_per_epoch=length.steps_per_epoch,
        total_steps=length.total_steps,
        total_samples=length.total_samples,
        unit=workload.unit,
        objective={"metric": workload.objective.metric, "direction": workload.objective.direction},
    )
