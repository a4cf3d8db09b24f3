"""Builds a trainer from a context and a workload, in the order in which its parts depend on each other, and records each choice."""

from __future__ import annotations

import torch

from paceline.config.arithmetic import Length, plan_length
from paceline.config.effects import find_idle_length
from paceline.config.nearest import nearest
from paceline.config.sections import Best
from paceline.engine.attention import choose_attention, find_calls
from paceline.engine.average import Average
from paceline.engine.checkpoint.saver import Saver
from paceline.engine.checkpoint.start import Start, choose_start
from paceline.engine.compilation import Compilation, choose_dynamic
from paceline.engine.context import Context
from paceline.engine.dealing import find_measure
from paceline.engine.device_stats import peak_flops
from paceline.engine.effects import find_ineffective
from paceline.engine.evaluation import Evaluator
from paceline.engine.garbage import Garbage
from paceline.engine.graph import choose_graph
from paceline.engine.loader import Loader
from paceline.engine.marks import MarkedTimer, Marks, NvtxMarks
from paceline.engine.monitor import Monitor
from paceline.engine.optimizer import LearningRate, build_optimizer, find_unmatched
from paceline.engine.powersgd import check_precision
from paceline.engine.precision import build_precision
from paceline.engine.profile import StepProfile
from paceline.engine.rank_times import RankTimes
from paceline.engine.recomputation import recompute_blocks
from paceline.engine.seeding import make_deterministic, seed_model
from paceline.engine.state import TrainState
from paceline.engine.step import TrainStep
from paceline.engine.strategies.base import Strategy, find_trainable
from paceline.engine.strategies.choice import build_strategy, choose_strategy
from paceline.engine.tables import build_tables
from paceline.engine.timing import build_timer
from paceline.engine.trainer import Trainer
from paceline.engine.warm_up import warm_up
from paceline.errors import ConfigError, DataError
from paceline.workload import Chooses, Contrasts, Objective, Setting, Workload


def build_trainer(context: Context, workload: Workload) -> Trainer:
    """Everything one run needs, ready to run."""
    config, ranks, events = context.config, context.ranks, context.events
    if config.run.deterministic:
        make_deterministic()
    num_samples = len(workload.train_set())
    if num_samples == 0:
        raise DataError("the training set is empty", "data", "check data.path and the filters of the data section")
    length = plan_length(config.train, num_samples)
    start = choose_start(context)
    objective = choose_objective(config.checkpoint.best, workload)
    state = _take_state(context, start, length, objective)
    _record_plan(context, workload, objective, state, length, num_samples)
    device = ranks.device
    events.choice("device", "auto", str(device), "this local rank's GPU" if device.type == "cuda" else "no GPU here")
    precision = build_precision(config.precision, ranks, events)
    check_precision(config.parallel.compression, precision.name)
    calls = find_calls(workload, config, device, ranks.world_size)
    is_told = "attention.impl" in dict(context.idle)
    attention = choose_attention(config.attention, calls, precision.name, ranks, events, is_told=is_told)
    attention.install()
    kind = choose_strategy(ranks, config.parallel, events)
    seed_model(config.run.seed)
    setting = Setting(device, attention.kernel, kind.needs_even_calls)
    if isinstance(workload, Chooses):
        for choice in workload.choices(setting):
            events.choice(choice.about, choice.requested, choice.effective, choice.reason)
    model = workload.build_model(setting)
    start.load_model(model)
    if config.train.activation_checkpointing:
        recompute_blocks(model, events)
    strategy = build_strategy(kind, model, ranks, config.parallel, events)
    optimizer = build_optimizer(strategy.trainable, config.train.optimizer, device, events)
    strategy.adopt(optimizer)
    learning_rate = LearningRate(config.train, state.horizon)
    tables = build_tables(strategy, context, learning_rate)
    start.load_rest(strategy, optimizer, precision, tables)
    average = _build_average(context, model)
    start.load_average(average, events)
    use_graph, reason = choose_graph(
        config.train,
        device.type,
        ranks.has_group,
        precision.name,
        workload.has_static_shapes,
        workload.draws_numbers,
        isinstance(workload, Contrasts),
        tables is not None,
    )
    events.choice("train.graph", config.train.graph, use_graph, reason)
    samples = workload.train_set()
    loader = Loader(context, samples, length, find_measure(workload, samples, config.run.seed))
    idle = [*context.idle, *find_idle_length(config.train, num_samples, context.given)]
    for name, reason in [*idle, *find_ineffective(context), *loader.find_ineffective(context.given)]:
        events.write("note", what=f"{name} has no effect here", why=reason)
    if "train.optimizer.no_decay" in context.given:
        for word in find_unmatched(model, config.train.optimizer.no_decay):
            events.write(
                "note",
                what=f"train.optimizer.no_decay: {word!r} has no effect here",
                why="no parameter's name contains it",
            )
    timer = build_timer(device, is_synced=config.telemetry.sync_timing)
    if config.telemetry.sync_timing and device.type == "cuda":
        events.choice(
            "telemetry.sync_timing", True, True, "the host waits for the GPU at every phase: true, and slower"
        )
    profile = StepProfile(context, state.step + 1, length.total_steps, use_graph)
    marks: list[Marks] = [profile.marks] if config.telemetry.profile.start_step is not None else []
    if config.telemetry.nvtx and device.type == "cuda":
        events.choice("telemetry.nvtx", True, True, "as requested")
        marks.append(NvtxMarks())
    saver = Saver(context, strategy, optimizer, precision, None if start.is_fork else state, average, tables)
    step = TrainStep(
        context,
        workload,
        strategy,
        optimizer,
        precision,
        learning_rate,
        MarkedTimer(timer, marks) if marks else timer,
        saver.hold_update,
        use_graph,
        average,
        tables,
    )
    compilation = _compile(context, workload, strategy)
    evaluator = Evaluator(config, ranks, workload, strategy, precision, context.watch, compilation, average)
    monitor = Monitor(context, workload, peak_flops(device, precision.name, config.precision.tf32), state.samples)
    if compilation is not None:
        # Without exchanging gradients: a rank on which this fails must not leave the others waiting.
        with strategy.accumulating():
            warm_up(context, step.losses, strategy, precision, loader)
        compilation.settle()
    if strategy.rebuilds_buckets:
        warm_up(context, step.losses, strategy, precision, loader)
    if strategy.powersgd is not None:
        warm_up(
            context, step.losses, strategy, precision, loader
        )  # in the buckets that stay, so that they can be counted
        strategy.powersgd.begin(state.step, ranks.backend, sum(p.nbytes for p in find_trainable(model).values()))
        strategy.powersgd.tell(state.step, length.total_steps, events)
    return Trainer(
        context,
        workload,
        objective,
        state,
        strategy,
        length,
        loader,
        step,
        learning_rate,
        evaluator,
        monitor,
        timer,
        saver,
        profile,
        RankTimes(context, strategy, step.losses),
        compilation,
        average,
        tables,
        garbage=Garbage(config.train.gc_every, events),
        marks=marks,
    )


def _build_average(context: Context, model: torch.nn.Module) -> Average | None:
    decay = context.config.train.optimizer.ema
    if decay is None:
        return None
    context.events.choice(
        "train.optimizer.ema", decay, decay, "the average of the weights is evaluated, chosen as best and exported"
    )
    return Average(model, decay)


def _compile(context: Context, workload: Workload, strategy: Strategy) -> Compilation | None:
    """The compiled forward, if one is asked for; compiled by the first call."""
    config, device_type = context.config.train.compile, context.ranks.device.type
    if not config.enabled:
        return None
    dynamic, reason = choose_dynamic(config.dynamic, device_type, workload.has_static_shapes)
    context.events.choice("train.compile.dynamic", config.dynamic, dynamic, reason)
    return Compilation(context, strategy.model, dynamic)


def choose_objective(config: Best, workload: Workload) -> Objective:
    """The metric that decides which model is best: the configured one, or the recipe's."""
    default = workload.objective
    if config.metric is None:
        return default
    if config.metric not in workload.metric_names:
        close = nearest(config.metric, workload.metric_names)
        raise ConfigError(
            f"checkpoint.best.metric={config.metric} is none of the recipe's metrics ({', '.join(workload.metric_names)})",
            "checkpoint.best.metric",
            f"use {close or default.metric}",
        )
    if config.direction is None and config.metric != default.metric:
        what = f"checkpoint.best.metric={config.metric} without a direction"
        raise ConfigError(what, "checkpoint.best", "set checkpoint.best.direction=max, or min")
    return Objective(config.metric, config.direction or default.direction)


def _take_state(context: Context, start: Start, length: Length, objective: Objective) -> TrainState:
    """The counts to begin with; what the schedule and `best` refer to is settled here."""
    state, wanted = start.state, f"{objective.direction} {objective.metric}"
    if start.is_fork:
        # A run of its own: its schedule, and its best, which must lie in its own directory.
        state.best, state.best_step, state.stale_evaluations, state.objective = None, None, 0, ""
        state.evaluated_step = None
    if start.is_fork and state.step >= length.total_steps:
        raise ConfigError(
            f"nothing is left to train: it begins at step {state.step:,}, and its length is {length.total_steps:,} steps",
            "train.epochs and train.max_steps",
            "give a larger train.epochs or train.max_steps",
        )
    horizon = context.config.train.schedule.horizon or length.total_steps
    if state.step == 0 or start.is_fork:
        state.horizon = horizon
    elif state.horizon != horizon and context.config.train.schedule.kind != "constant":
        context.events.write(
            "note",
            what=f"the schedule of the learning rate stays laid out for {state.horizon:,} steps",
            why=f"as at the first start of this run, whose length is {length.total_steps:,} steps now; another schedule is a fork",
        )
    if state.step > length.total_steps:
        what = f"the run is at step {state.step:,} already, beyond its length of {length.total_steps:,} steps"
        context.events.write("note", what=what, why="there is nothing left to train")
    if state.objective not in ("", wanted):
        context.events.write("note", what=f"best starts anew: it was {state.objective}, and is {wanted}")
        state.best, state.best_step, state.stale_evaluations = None, None, 0
    state.objective = wanted
    return state


def _record_plan(
    context: Context, workload: Workload, objective: Objective, state: TrainState, length: Length, num_samples: int
) -> None:
    plan = context.batch_plan
    context.events.write(
        "plan",
        world_size=plan.world_size,
        num_samples=num_samples,
        start_step=state.step,
        accumulate=plan.accumulate,
        slices=plan.sizes(),
        steps_per_epoch=length.steps_per_epoch,
        total_steps=length.total_steps,
        total_samples=length.total_samples,
        horizon=state.horizon,
        unit=workload.unit,
        objective={"metric": objective.metric, "direction": objective.direction},
    )
