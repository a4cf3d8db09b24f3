"""Values that are fine one by one and cannot be had together, here: each is refused with both origins and the way out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from paceline.config.arithmetic import plan_batches, plan_length
from paceline.config.deepspeed import find_refused
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
    local_ranks: int | None = None
    """of them on this host, whose GPUs these are; None: all"""


def check(config: RunConfig, origins: Mapping[str, str], facts: Facts) -> list[Problem]:
    """Every contradiction of a configuration on this machine."""
    given = _Given(config, origins)
    return [
        *_check_graph(config, given, facts),
        *_check_sharding(config, given, facts),
        *_check_deepspeed(config, given, facts),
        *_check_batches(config, given, facts),
        *_check_length(config, given, facts),
        *_check_device(config, given, facts),
        *_check_repeating(config, given),
        *_check_evaluation(config, given),
        *_check_attention(config, given),
        *_check_loader(config, given, facts),
        *_check_profile(config, given, facts),
        *_check_supervision(config, given),
        *_check_hosts(config, given),
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
    if config.train.compile.enabled:
        yield Problem(
            "parallel.static_graph=true cannot be combined with train.compile.enabled=true "
            "(what is compiled is tried without exchanging gradients, which a static graph does not allow)",
            given.where("parallel.static_graph", "train.compile.enabled"),
            "set parallel.static_graph=false",
        )
    if config.parallel.find_unused:
        yield Problem(
            "parallel.static_graph=true cannot be combined with parallel.find_unused=true "
            "(a static graph promises what find_unused searches for in every step)",
            given.where("parallel.static_graph", "parallel.find_unused"),
            "set one of them to false",
        )


def _check_sharding(config: RunConfig, given: _Given, facts: Facts) -> Iterator[Problem]:
    """What a stage cannot do; one rank shards nothing, whatever the stage."""
    parallel = config.parallel
    if parallel.zero_stage == 0 or facts.world_size == 1 or parallel.engine != "torch":
        return
    refused = {"train.graph": "gradients travel between ranks during backward"} if config.train.graph is True else {}
    if parallel.zero_stage > 1:
        reasons = {
            "parallel.static_graph": "that is a promise to DDP, which stages 0 and 1 use",
            "parallel.find_unused": "that is a search of DDP's, which stages 0 and 1 use",
            "parallel.bucket_view": "that is about DDP's buckets, and rows are reduced without any",
            "train.optimizer.ema": "the average is kept of whole weights, which no rank has",
        }
        refused |= {key: reason for key, reason in reasons.items() if given.chosen(key)}
        if config.train.compile.enabled:
            refused["train.compile.enabled"] = (
                "weights travel in a forward, and where compiling fails that forward is begun again"
            )
        if parallel.compression == "fp16":
            refused["parallel.compression"] = "rows are added up in the type that they travel in, and fp16 overflows"
        if parallel.compression == "powersgd":
            refused["parallel.compression"] = "that is a hook of DDP's, which stages 0 and 1 use"
    for key, reason in refused.items():
        default = show(describe(type(config))[key].default)
        other = "bf16, or none" if key == "parallel.compression" else default
        yield Problem(
            f"{given.say('parallel.zero_stage')} cannot be combined with {given.say(key)} ({reason})",
            given.where("parallel.zero_stage", key),
            f"set {key}={other}, or parallel.zero_stage={0 if key == 'train.graph' else 1}",
        )


def _check_deepspeed(config: RunConfig, given: _Given, facts: Facts) -> Iterator[Problem]:
    """What DeepSpeed's engine cannot do, and what of its configuration is not for the user to set; one rank does without it."""
    parallel = config.parallel
    if parallel.engine != "deepspeed":
        return
    for name in parallel.deepspeed:
        refused = find_refused(name)
        if refused is not None:
            what = f"parallel.deepspeed cannot set {name}: {refused[0]}"
            yield Problem(what, given.where("parallel.deepspeed"), refused[1])
    if facts.world_size == 1:
        return
    reasons = {
        "parallel.compression": "DeepSpeed reduces gradients itself, in fp32",
        "parallel.static_graph": "that is a promise to DDP",
        "parallel.find_unused": "that is a search of DDP's",
        "parallel.bucket_view": "that is about DDP's buckets",
        "train.compile.enabled": "DeepSpeed listens to the calls of the model's modules, and what is compiled makes none",
    }
    refusals = {key: reason for key, reason in reasons.items() if given.chosen(key)}
    if config.train.graph is True:
        refusals["train.graph"] = "gradients travel between ranks during backward"
    if parallel.zero_stage == 3 and config.train.optimizer.ema is not None:
        refusals["train.optimizer.ema"] = "the average is kept of whole weights, which no rank has at stage 3"
    for key, reason in refusals.items():
        yield Problem(
            f"parallel.engine=deepspeed cannot be combined with {given.say(key)} ({reason})",
            given.where("parallel.engine", key),
            f"set {key}={show(describe(type(config))[key].default)}, or parallel.engine=torch",
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
    warmup, horizon = train.schedule.warmup_steps, train.schedule.horizon
    if horizon is not None and warmup >= horizon:
        yield Problem(
            f"the warm-up ({given.say('train.schedule.warmup_steps')}) is not shorter than {given.say('train.schedule.horizon')}",
            given.where("train.schedule.warmup_steps", "train.schedule.horizon"),
            "set a longer train.schedule.horizon, or a shorter warm-up",
        )
    elif warmup and horizon is None and total is not None and warmup >= total:
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


def powersgd_in_fp16(where: str) -> Problem:
    """Also where precision.mode=auto comes to fp16, which only the engine sees."""
    return Problem(
        "parallel.compression=powersgd cannot be combined with precision.mode=fp16 (whose scale of the loss changes, while "
        "PowerSGD adds what one step lost to the next)",
        where,
        "set precision.mode=bf16 or fp32, or parallel.compression=fp16",
    )


def _check_device(config: RunConfig, given: _Given, facts: Facts) -> Iterator[Problem]:
    if config.parallel.backend == "nccl" and facts.num_gpus == 0:
        yield Problem(
            "parallel.backend=nccl needs a GPU, and none is visible",
            given.where("parallel.backend"),
            "set parallel.backend=gloo (or auto)",
        )
    elif config.parallel.backend == "nccl" and (facts.local_ranks or facts.world_size) > facts.num_gpus:
        yield Problem(
            f"parallel.backend=nccl needs one GPU per rank: {_ranks(facts)}, {facts.num_gpus} visible",
            given.where("parallel.backend", "launch.nproc"),
            f"set parallel.backend=gloo, or launch.nproc={facts.num_gpus}",
        )
    if config.precision.mode == "fp16" and config.parallel.compression == "powersgd":
        yield powersgd_in_fp16(given.where("parallel.compression", "precision.mode"))
    if config.precision.mode == "fp16" and facts.num_gpus == 0:
        yield Problem(
            "precision.mode=fp16 needs a GPU, and none is visible (a CPU has no fast fp16)",
            given.where("precision.mode"),
            "set precision.mode=bf16, or precision.mode=fp32",
        )


def _check_repeating(config: RunConfig, given: _Given) -> Iterator[Problem]:
    search = config.train.compile
    if config.run.deterministic and search.enabled and search.mode != "default":
        yield Problem(
            f"run.deterministic=true cannot be combined with {given.say('train.compile.mode')} "
            "(it chooses kernels by timing them, so that a resumed run may compute by others)",
            given.where("run.deterministic", "train.compile.mode"),
            "set train.compile.mode=default, or run.deterministic=false",
        )


def _check_evaluation(config: RunConfig, given: _Given) -> Iterator[Problem]:
    evaluate = config.evaluate
    if config.stop.patience is not None and evaluate.every_steps is None and evaluate.every_epochs is None:
        yield Problem(
            f"{given.say('stop.patience')} waits for evaluations, and none takes place",
            given.where("stop.patience", "evaluate.every_steps", "evaluate.every_epochs"),
            "set evaluate.every_epochs=1, or stop.patience=null",
        )


def _check_attention(config: RunConfig, given: _Given) -> Iterator[Problem]:
    impl, excluded = config.attention.impl, set(config.attention.exclude)
    where = given.where("attention.impl", "attention.exclude")
    if impl in excluded:
        yield Problem(
            f"attention.impl={impl} asks for what {given.say('attention.exclude')} rules out",
            where,
            f"take {impl} out of attention.exclude, or set attention.impl=auto",
        )
    backends = {"flash", "cudnn", "efficient", "math"}
    if impl == "sdpa" and backends <= excluded:
        yield Problem(
            f"attention.impl=sdpa with {given.say('attention.exclude')}, which leaves SDPA no backend",
            where,
            "exclude fewer of them, or set attention.impl=eager",
        )
    if impl == "auto" and backends | {"eager", "flex"} <= excluded:
        yield Problem(
            f"{given.say('attention.exclude')} leaves no attention at all", where, "take math or eager out of it"
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


def _check_supervision(config: RunConfig, given: _Given) -> Iterator[Problem]:
    supervise = config.supervise
    if supervise.policy == "restart" and supervise.max_restarts == 0:
        yield Problem(
            "supervise.policy=restart cannot be combined with supervise.max_restarts=0: nothing would ever be restarted",
            given.where("supervise.policy", "supervise.max_restarts"),
            "set supervise.max_restarts=3, or supervise.policy=halt",
        )


def _check_hosts(config: RunConfig, given: _Given) -> Iterator[Problem]:
    launch = config.launch
    least, _, most = str(launch.nnodes).partition(":")
    if most and int(least) > int(most):
        yield Problem(
            f"{given.say('launch.nnodes')} asks for at least {least} hosts and at most {most}",
            given.where("launch.nnodes"),
            f"write --nnodes {most}:{least}",
        )
    if int(most or least) > 1 and not launch.rdzv:
        yield Problem(
            f"{given.say('launch.nnodes')} needs a place where the hosts meet",
            given.where("launch.nnodes"),
            "add --rdzv HOST:PORT with the address of one of them, the same on every host",
        )
    if launch.rdzv and int(most or least) == 1:
        yield Problem(
            f"{given.say('launch.rdzv')} has no effect with launch.nnodes=1",
            given.where("launch.rdzv", "launch.nnodes"),
            "say how many hosts there are: --nnodes 2, or --nnodes 1:2",
        )
