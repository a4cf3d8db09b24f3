"""Values that are fine one by one and cannot be had together, here: each is refused with both origins and the way out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from paceline.config.arithmetic import plan_batches, plan_length
from paceline.config.describe import describe, value_at
from paceline.config.loading import DEFAULT
from paceline.config.sections import RunConfig
from paceline.config.source import show
from paceline.errors import Problem


@dataclass(frozen=True)
class Facts:
    """What the configuration meets: the ranks and GPUs it will run on, the data where its size is known."""

    world_size: int
    num_gpus: int
    num_samples: int | None = None


def check(config: RunConfig, origins: Mapping[str, str], facts: Facts) -> list[Problem]:
    """Every contradiction of a configuration on this machine."""
    given = _Given(config, origins)
    return [
        *_check_graph(config, given, facts),
        *_check_batches(config, given, facts),
        *_check_length(config, given, facts),
        *_check_device(config, given, facts),
        *_check_evaluation(config, given),
        *_check_loader(config, given, facts),
        *_check_profile(config, given, facts),
    ]


@dataclass(frozen=True)
class _Given:
    config: RunConfig
    origins: Mapping[str, str]

    def where(self, *keys: str) -> str:
        origins = {key: self.origins.get(key, DEFAULT) for key in keys}
        return " and ".join(dict.fromkeys(f"{key} ({o})" if o == DEFAULT else o for key, o in origins.items()))

    def say(self, key: str) -> str:
        return f"{key}={show(value_at(self.config, key))}"

    def chosen(self, key: str) -> bool:
        """Somebody gave it, and not the value it has anyway (a dumped configuration gives every key)."""
        default = describe(type(self.config))[key].default
        return self.origins.get(key, DEFAULT) != DEFAULT and value_at(self.config, key) != default


def _check_graph(config: RunConfig, given: _Given, facts: Facts) -> Iterator[Problem]:
    if not config.parallel.static_graph:
        return
    train = config.train
    accumulate = plan_batches(train.global_batch, train.micro_batch, train.accumulate, facts.world_size).accumulate
    if accumulate > 1:
        what, keys = f"train.accumulate={accumulate}", ["train.accumulate"]
        do = "train.accumulate=1"
        if train.accumulate is None:
            ranks = _ranks(facts)
            what += f" = ceil({given.say('train.global_batch')} / ({ranks} × {given.say('train.micro_batch')}))"
            keys = ["train.micro_batch", "train.global_batch"]
            do = f"train.micro_batch={-(-train.global_batch // facts.world_size)}"
        yield Problem(
            f"parallel.static_graph=true cannot be combined with {what} (DDP loses gradient sync under no_sync)",
            given.where("parallel.static_graph", *keys),
            f"set parallel.static_graph=false, or {do}",
        )
    if config.parallel.find_unused:
        yield Problem(
            "parallel.static_graph=true cannot be combined with parallel.find_unused=true "
            "(a static graph promises what find_unused searches for in every step)",
            given.where("parallel.static_graph", "parallel.find_unused"),
            "set one of them to false",
        )


def _check_batches(config: RunConfig, given: _Given, facts: Facts) -> Iterator[Problem]:
    train = config.train
    if train.micro_batch is not None and train.accumulate is not None:
        product = facts.world_size * train.micro_batch * train.accumulate
        if product != train.global_batch:
            yield Problem(
                f"{_ranks(facts)} × {given.say('train.micro_batch')} × {given.say('train.accumulate')} = {product}, "
                f"which is not {given.say('train.global_batch')}",
                given.where("train.global_batch", "train.micro_batch", "train.accumulate"),
                f"set train.accumulate=null (it follows from the others), or train.global_batch={product}",
            )
    largest = -(-train.global_batch // facts.world_size)
    if train.micro_batch is None and train.accumulate is not None and train.accumulate > largest:
        yield Problem(
            f"{given.say('train.accumulate')} cuts a rank's {largest} samples of {given.say('train.global_batch')} "
            f"on {_ranks(facts)} into empty micro-steps",
            given.where("train.accumulate", "train.global_batch"),
            f"set train.accumulate={largest} at most",
        )
    scaling = train.lr_scaling
    if scaling.rule != "none" and scaling.base_batch is None:
        yield Problem(
            f"{given.say('train.lr_scaling.rule')} needs the batch that train.optimizer.lr was chosen for",
            given.where("train.lr_scaling.rule", "train.lr_scaling.base_batch"),
            "set train.lr_scaling.base_batch=N, or train.lr_scaling.rule=none",
        )


def _check_length(config: RunConfig, given: _Given, facts: Facts) -> Iterator[Problem]:
    train = config.train
    total, keys = train.max_steps, ["train.max_steps"]
    if facts.num_samples:
        total = plan_length(train, facts.num_samples).total_steps
        lengths = ("train.epochs", "train.max_steps", "train.max_steps_per_epoch")
        keys = [key for key in lengths if value_at(config, key) is not None] or ["train.epochs"]
    warmup = train.schedule.warmup_steps
    if warmup and total is not None and warmup >= total:
        yield Problem(
            f"the warm-up ({given.say('train.schedule.warmup_steps')}) is not shorter than the run, which has {total} steps",
            given.where("train.schedule.warmup_steps", *keys),
            f"set train.schedule.warmup_steps={total // 10}, or train longer",
        )
    if train.schedule.kind == "step" and train.schedule.decay_every is None:
        yield Problem(
            "train.schedule.kind=step needs the number of steps between two decays",
            given.where("train.schedule.kind", "train.schedule.decay_every"),
            "set train.schedule.decay_every=N",
        )


def _check_device(config: RunConfig, given: _Given, facts: Facts) -> Iterator[Problem]:
    if config.parallel.backend == "nccl" and facts.num_gpus == 0:
        yield Problem(
            "parallel.backend=nccl needs a GPU, and none is visible",
            given.where("parallel.backend"),
            "set parallel.backend=gloo (or auto)",
        )
    elif config.parallel.backend == "nccl" and facts.world_size > facts.num_gpus:
        yield Problem(
            f"parallel.backend=nccl needs one GPU per rank: {_ranks(facts)}, {facts.num_gpus} visible",
            given.where("parallel.backend", "launch.nproc"),
            f"set parallel.backend=gloo, or launch.nproc={facts.num_gpus}",
        )
    if config.precision.mode == "fp16" and facts.num_gpus == 0:
        yield Problem(
            "precision.mode=fp16 needs a GPU, and none is visible (a CPU has no fast fp16)",
            given.where("precision.mode"),
            "set precision.mode=bf16, or precision.mode=fp32",
        )


def _check_evaluation(config: RunConfig, given: _Given) -> Iterator[Problem]:
    evaluate = config.evaluate
    if config.stop.patience is not None and evaluate.every_steps is None and evaluate.every_epochs is None:
        yield Problem(
            f"{given.say('stop.patience')} waits for evaluations, and none takes place",
            given.where("stop.patience", "evaluate.every_steps", "evaluate.every_epochs"),
            "set evaluate.every_epochs=1, or stop.patience=null",
        )


def _check_loader(config: RunConfig, given: _Given, facts: Facts) -> Iterator[Problem]:
    loader_s, collective_s = config.data.loader_timeout_s, config.parallel.timeout_s
    if isinstance(loader_s, float) and facts.world_size > 1 and loader_s >= collective_s:
        yield Problem(
            f"{given.say('data.loader_timeout_s')} is not shorter than {given.say('parallel.timeout_s')}: "
            "the other ranks would give up first, and nobody would name the loader",
            given.where("data.loader_timeout_s", "parallel.timeout_s"),
            f"set data.loader_timeout_s={collective_s / 2:g}, or parallel.timeout_s={2 * loader_s:g}",
        )


def _check_profile(config: RunConfig, given: _Given, facts: Facts) -> Iterator[Problem]:
    profile, train = config.telemetry.profile, config.train
    if profile.start_step is None:
        return
    missing = [rank for rank in profile.ranks if isinstance(rank, int) and rank >= facts.world_size]
    if missing:
        yield Problem(
            f"{given.say('telemetry.profile.ranks')} names rank {missing[0]}, and there {'is' if facts.world_size == 1 else 'are'} {_ranks(facts)}",
            given.where("telemetry.profile.ranks"),
            f"name ranks from 0 to {facts.world_size - 1}",
        )
    total = plan_length(train, facts.num_samples).total_steps if facts.num_samples else train.max_steps
    if total is not None and profile.start_step > total:
        yield Problem(
            f"{given.say('telemetry.profile.start_step')} lies behind the end of the run, which has {total} steps",
            given.where("telemetry.profile.start_step", "train.max_steps", "train.epochs"),
            f"set telemetry.profile.start_step={max(1, total // 2)}, or train longer",
        )


def _ranks(facts: Facts) -> str:
    return "1 rank" if facts.world_size == 1 else f"{facts.world_size} ranks"
