"""Settings that somebody gave and that another setting leaves without effect: said once, never refused.

A shipped file may give `min_ratio` for its cosine; who overrides the kind with `constant` should hear of it and not be stopped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from paceline.config.arithmetic import plan_length
from paceline.config.sections import RunConfig, Train

_PHASE_LIMITS = ("start_limit_s", "compile_limit_s", "evaluate_limit_s", "checkpoint_limit_s")


def find_idle_length(train: Train, num_samples: int, given: Collection[str]) -> Iterator[tuple[str, str]]:
    """(key, reason) of the one of two given lengths that is never reached; the size of the data decides."""
    if train.epochs is None or train.max_steps is None:
        return
    by_epochs = train.epochs * plan_length(train, num_samples).steps_per_epoch
    epochs = f"train.epochs={train.epochs} {{}} {by_epochs:,} steps"
    if train.max_steps > by_epochs and "train.max_steps" in given:
        yield "train.max_steps", epochs.format("ends the run after")
    elif train.max_steps < by_epochs and "train.epochs" in given:
        yield "train.epochs", f"train.max_steps={train.max_steps} ends the run sooner ({epochs.format('would be')})"


def find_idle(config: RunConfig, given: Collection[str]) -> Iterator[tuple[str, str]]:
    """(key, reason) of each key in `given` that changes nothing, whatever machine the run is on."""
    optimizer, schedule = config.train.optimizer, config.train.schedule
    idle: list[tuple[str, str]] = []
    if optimizer.name == "sgd":
        idle += [("train.optimizer.betas", "sgd has none"), ("train.optimizer.eps", "sgd has none")]
    else:
        idle += [("train.optimizer.momentum", f"{optimizer.name} has betas instead")]
    if optimizer.weight_decay == 0:
        idle += [("train.optimizer.no_decay", "train.optimizer.weight_decay=0")]
    if schedule.kind == "constant":
        idle += [(f"train.schedule.{name}", "train.schedule.kind=constant") for name in ("min_ratio", "horizon")]
    if schedule.kind != "step":
        idle += [
            (f"train.schedule.{name}", f"train.schedule.kind={schedule.kind}")
            for name in ("decay_every", "decay_factor")
        ]
    if config.train.lr_scaling.rule == "none":
        idle += [("train.lr_scaling.base_batch", "train.lr_scaling.rule=none")]
    if config.parallel.compression != "powersgd":
        reason = f"parallel.compression={config.parallel.compression}"
        idle += [(f"parallel.powersgd.{name}", reason) for name in ("rank", "start_step")]
    if config.parallel.engine != "deepspeed":
        idle += [("parallel.deepspeed", f"parallel.engine={config.parallel.engine}")]
    if not config.train.compile.enabled:
        idle += [(f"train.compile.{name}", "train.compile.enabled=false") for name in ("scope", "mode", "dynamic")]
    if config.data.num_workers == 0:
        idle += [
            (f"data.{name}", "data.num_workers=0 loads in the training process")
            for name in ("prefetch", "loader_timeout_s")
        ]
    if not config.supervise.enabled:
        names = ("policy", "stall_floor_s", "stall_factor", *_PHASE_LIMITS)
        idle += [(f"supervise.{name}", "supervise.enabled=false") for name in names]
    if config.telemetry.profile.start_step is None:
        idle += [
            (f"telemetry.profile.{name}", "telemetry.profile.start_step is not set") for name in ("num_steps", "ranks")
        ]
    impl, fallback = config.attention.impl, config.attention.fallback
    if impl in ("auto", "eager"):
        what = "auto takes what can be served" if impl == "auto" else "eager runs everywhere"
        idle += [("attention.fallback", f"attention.impl={impl}: {what}")]
    if impl == "eager" or (impl not in ("auto", "sdpa") and fallback == "error"):
        idle += [("attention.exclude", f"attention.impl={impl}: nothing else is ever chosen")]
    if not config.checkpoint.enabled:
        idle += [
            (f"checkpoint.{name}", "checkpoint.enabled=false")
            for name in ("every_steps", "every_epochs", "keep", "asynchronous")
        ]
    if config.checkpoint.best.metric is None:
        idle += [("checkpoint.best.direction", "checkpoint.best.metric is not set: the recipe's has its own direction")]
    return ((key, reason) for key, reason in idle if key in given)
