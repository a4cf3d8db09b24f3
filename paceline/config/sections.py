"""The typed sections of a configuration: every key, its type, its default, one sentence on what it does, its fingerprint class.

A recipe's own schema subclasses `RunConfig` and refines `data`, `model`, `loss` and `evaluate`. Nothing here reads a file or knows torch.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, field_validator

IDENTITY = "identity"
"""Another value is another run: a checkpoint or directory with another one is refused."""
NUMERICS = "numerics"
"""Another value is the same training, not bit for bit: accepted and recorded."""
OPERATIONAL = "operational"
"""Free to change between attempts."""

Bool = StrictBool
"""`true` or `false`, never 1, "yes" or "on"."""


Share = Annotated[float, Field(ge=0, lt=1)]


def key(default: Any, sentence: str, fingerprint: str = OPERATIONAL, **constraints: Any) -> Any:
    """A configuration key: its default, what it does, and which class of the fingerprint it belongs to."""
    return Field(
        default,
        description=sentence,
        json_schema_extra={"fingerprint": fingerprint},
        validate_default=True,
        **constraints,
    )


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values do not change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _fits(cls, value: Any) -> Any:
        """What counts or measures something ends up in numbers of 64 bits, of torch, numpy or the system."""
        several = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        if any(isinstance(each, int) and not -(2**63) <= each < 2**63 for each in several):
            raise ValueError("whole numbers lie between -2**63 and 2**63 - 1 here")
        return value


class Run(Section):
    name: str = key("", "A name for people; the default directory is made from the recipe and the fingerprint.")
    out: str = key("", "The run directory; empty: runs/<recipe>-<fingerprint>.")
    seed: int = key(
        0, "Seed of initial weights, sample order, dropout and everything drawn per sample.", IDENTITY, ge=0, lt=2**63
    )
    deterministic: Bool = key(
        False, "Deterministic kernels only: needed for bitwise repeatable runs on CUDA, slower.", NUMERICS
    )


class Launch(Section):
    nproc: Literal["auto"] | Annotated[int, Field(ge=1)] = key(
        "auto", "Worker processes on this machine; auto: one per GPU, or one where there is none."
    )
    gpus: list[Annotated[int, Field(ge=0)]] | None = key(
        None, "Which GPUs to use, by index; null: all that are visible."
    )
    env: dict[str, str | int | float] = key(
        {}, "NCCL_*, TORCH_NCCL_*, GLOO_* and allocator settings for the workers; names are checked."
    )
    omp_threads: Literal["auto"] | Annotated[int, Field(ge=1)] = key(
        "auto", "CPU threads per worker; auto: OMP_NUM_THREADS if inherited, else the cores divided among the workers."
    )
    nnodes: Annotated[int, Field(ge=1)] | Annotated[str, Field(pattern=r"^[1-9][0-9]*:[1-9][0-9]*$"), "MIN:MAX"] = key(
        1, "Hosts that train together, or MIN:MAX: a lost one is done without, one that comes is taken in."
    )
    rdzv: str = key("", "HOST:PORT at which the hosts meet, the same on each; the host that has this address leads.")
    interface: str = key("auto", "Network interface for the other hosts; auto: the one that leads to launch.rdzv.")
    rdzv_timeout_s: float = key(
        300, "Seconds to wait for enough hosts, or for the leader; then it ends with who is missing.", gt=0, le=1e7
    )
    lost_after_s: float = key(10, "Seconds of silence after which another host counts as lost.", ge=3, le=1e5)
    debug: Bool = key(
        False, "Collectives check shapes and order (TORCH_DISTRIBUTED_DEBUG=DETAIL, NCCL_DEBUG=INFO); slow."
    )


class Data(Section):
    num_workers: Literal["auto"] | Annotated[int, Field(ge=0)] = key(
        "auto",
        "Loader processes per worker; 0 loads in the training process; auto: none where fetching is light, else by the cores.",
    )
    prefetch: int = key(2, "Batches each loader process prepares ahead.", ge=1)
    pin_memory: Literal["auto"] | Bool = key("auto", "Page-locked host memory for batches; auto: on CUDA.")
    loader_timeout_s: Literal["auto"] | Annotated[float, Field(gt=0, le=1e7)] | None = key(
        "auto",
        "A batch that a loader process does not bring within this time is an error; auto: half of parallel.timeout_s; null: never.",
    )


class Optimizer(Section):
    name: Literal["adamw", "adam", "sgd"] = key("adamw", "Update rule.", IDENTITY)
    lr: float = key(1e-3, "Learning rate at the peak of the schedule, before lr_scaling.", IDENTITY, gt=0)
    betas: tuple[Share, Share] = key((0.9, 0.999), "Adam's decay rates.", IDENTITY)
    eps: float = key(1e-8, "Adam's denominator term.", IDENTITY, gt=0)
    momentum: float = key(0.0, "SGD's momentum.", IDENTITY, ge=0, lt=1)
    weight_decay: float = key(0.0, "Weight decay of the parameters that are not excluded by no_decay.", IDENTITY, ge=0)
    no_decay: list[str] = key(
        ["bias", "norm", "embedding"],
        "Parameters whose name contains one of these words get no weight decay.",
        IDENTITY,
    )
    ema: float | None = key(
        None,
        "Decay of a moving average of the weights, which is evaluated, chosen as best and exported; null: none.",
        IDENTITY,
        gt=0,
        lt=1,
    )
    fused: Literal["auto"] | Bool = key("auto", "The fused implementation; auto: where the device has one.", NUMERICS)


class Schedule(Section):
    kind: Literal["constant", "linear", "cosine", "step"] = key(
        "constant", "Shape of the learning rate after warm-up, over optimizer steps.", IDENTITY
    )
    warmup_steps: int = key(0, "Optimizer steps of linear warm-up.", IDENTITY, ge=0)
    min_ratio: float = key(
        0.0, "Learning rate at the end, as a fraction of the peak (linear, cosine, step).", IDENTITY, ge=0, le=1
    )
    horizon: int | None = key(
        None, "Optimizer steps that the schedule is laid out for; null: the length of the run.", IDENTITY, ge=1
    )
    decay_every: int | None = key(None, "For kind step: optimizer steps between two decays.", IDENTITY, ge=1)
    decay_factor: float = key(0.1, "For kind step: the factor of each decay.", IDENTITY, gt=0, lt=1)


class LrScaling(Section):
    rule: Literal["none", "linear", "sqrt"] = key(
        "none", "How the learning rate follows global_batch / base_batch.", IDENTITY
    )
    base_batch: int | None = key(None, "The global batch that optimizer.lr was chosen for.", IDENTITY, ge=1)


class Compile(Section):
    enabled: Bool = key(
        False,
        "Compile the model's forward and backward with torch.compile; what cannot be compiled runs eagerly.",
        NUMERICS,
    )
    scope: Literal["model", "blocks"] = key(
        "model",
        "What is compiled as one: the whole model, or each of its blocks (elements of an nn.ModuleList); blocks that are built alike are "
        "compiled once.",
        NUMERICS,
    )
    mode: Literal["default", "max-autotune-no-cudagraphs"] = key(
        "default",
        "How long the compiler searches; without CUDA graphs of its own.",
        NUMERICS,
    )
    dynamic: Literal["auto"] | Bool = key(
        "auto", "Kernels for any shape; auto: not where the recipe's batches keep their shapes.", NUMERICS
    )


class Train(Section):
    global_batch: int = key(128, "Samples per optimizer step, over all ranks: the invariant.", IDENTITY, ge=1)
    micro_batch: int | None = key(
        None, "At most this many samples per rank and micro-step (memory); null: no bound.", NUMERICS, ge=1
    )
    accumulate: int | None = key(
        None, "Micro-steps per step; null: as many as micro_batch and the world size ask for.", NUMERICS, ge=1
    )
    epochs: int | None = key(None, "Passes over the training set.", ge=1)
    max_steps: int | None = key(None, "Optimizer steps after which to end, whatever the epoch.", ge=1)
    max_steps_per_epoch: int | None = key(
        None, "Optimizer steps of each epoch; the rest of the epoch is left out.", IDENTITY, ge=1
    )
    clip_norm: float | None = key(None, "Gradients are scaled down to this norm; null: not.", IDENTITY, gt=0)
    graph: Literal["auto"] | Bool = key(
        "auto", "Replay forward and backward, and the update, as CUDA graphs; auto: where shapes allow it.", NUMERICS
    )
    activation_checkpointing: Bool = key(
        False,
        "Compute the model's blocks again in backward rather than keep what they computed: less memory, more time.",
        NUMERICS,
    )
    compile: Compile = key(Compile(), "torch.compile.")
    nonfinite: Literal["stop", "skip"] = key(
        "stop",
        "On a loss or gradient that is not a number: stop, or leave the step out and go on. Neither updates the weights.",
    )
    gc_every: int = key(
        50,
        "Steps between two garbage collections, which all ranks make together; 0: Python's own, in the middle of steps.",
        ge=0,
    )
    optimizer: Optimizer = key(Optimizer(), "The update rule.")
    schedule: Schedule = key(Schedule(), "The learning rate over time.")
    lr_scaling: LrScaling = key(LrScaling(), "The learning rate over batch size.")


class PowerSgd(Section):
    rank: int = key(
        2, "For compression powersgd: columns of the two matrices that stand for a gradient.", NUMERICS, ge=1
    )
    start_step: int = key(
        100, "For compression powersgd: so many steps at the beginning send whole gradients.", NUMERICS, ge=0
    )


class Parallel(Section):
    backend: Literal["auto", "nccl", "gloo"] = key(
        "auto", "Collectives; auto: nccl with one GPU per rank, else gloo.", NUMERICS
    )
    zero_stage: Literal[0, 1, 2, 3] = key(
        0,
        "What the ranks share out: 0 nothing (DDP), 1 the optimizer's state, 2 also gradients and weights between steps, "
        "3 also weights between forward and backward.",
        NUMERICS,
    )
    engine: Literal["torch", "deepspeed"] = key(
        "torch", "Whose implementation of the stages: torch's, or DeepSpeed's (an optional package).", NUMERICS
    )
    deepspeed: dict[str, Bool | int | float | str] = key(
        {}, "For engine deepspeed: settings of DeepSpeed's own, passed through; names are checked.", NUMERICS
    )
    bucket_mb: float = key(25, "Size of DDP's gradient buckets, in MiB.", NUMERICS, gt=0)
    compression: Literal["none", "bf16", "fp16", "powersgd"] = key(
        "none", "What gradients travel as: a smaller type, or matrices of low rank (powersgd).", NUMERICS
    )
    powersgd: PowerSgd = key(PowerSgd(), "Gradients as matrices of low rank.")
    static_graph: Bool = key(False, "Promise DDP that every step uses the same parameters.", NUMERICS)
    find_unused: Bool = key(False, "Let DDP search for parameters without gradient in every step.", NUMERICS)
    bucket_view: Bool = key(True, "Gradients are views into DDP's buckets: one copy less.", NUMERICS)
    timeout_s: float = key(600, "A collective that takes longer than this is an error.", gt=0, le=1e7)
    check_every: int = key(
        200,
        "Steps between two checks that the parameters are identical on all ranks, and once at the end; 0: never.",
        ge=0,
    )


class Precision(Section):
    mode: Literal["auto", "fp32", "bf16", "fp16"] = key(
        "auto", "Type of forward and backward; weights and optimizer stay fp32. auto: by compute capability.", NUMERICS
    )
    tf32: Bool = key(True, "Let fp32 matrix products use TensorFloat-32 on GPUs that have it.", NUMERICS)


class Attention(Section):
    impl: Literal["auto", "eager", "sdpa", "flash", "cudnn", "flex"] = key(
        "auto",
        "Attention kernel: written out, torch's SDPA with any backend or with this one alone, or flex attention; "
        "auto: eager on GPUs below compute capability 8.0, else sdpa.",
        NUMERICS,
    )
    exclude: list[Literal["flash", "cudnn", "efficient", "math", "eager", "flex"]] = key(
        [], "Never to be used: backends of SDPA, and eager or flex where auto or a fallback chooses.", NUMERICS
    )
    fallback: Literal["warn", "error"] = key(
        "warn", "Where impl cannot be served: take what auto would, and say why; or end with the reason.", NUMERICS
    )


class Evaluate(Section):
    every_steps: int | None = key(None, "Optimizer steps between two evaluations on validation data.", ge=1)
    every_epochs: int | None = key(1, "Epochs between two evaluations on validation data; null: none.", ge=1)
    at_start: Bool = key(False, "Evaluate once before the first step.")
    max_samples: int | None = key(None, "Evaluate the first so many samples only; null: all.", ge=1)
    block: int = key(
        256, "Samples scored together; independent of the world size, so that the digits are too.", NUMERICS, ge=1
    )


class Best(Section):
    metric: str | None = key(
        None, "The metric that decides which checkpoint is best, and early stops; null: the recipe's."
    )
    direction: Literal["max", "min"] | None = key(None, "Whether more of it is better; null: as the recipe says.")


class Checkpoint(Section):
    enabled: Bool = key(True, "Write checkpoints; false: none at all, and the run cannot be resumed.")
    every_steps: int | None = key(None, "Optimizer steps between two checkpoints; null: not by steps.", ge=1)
    every_epochs: int | None = key(1, "Epochs between two checkpoints; null: only at stops and at the end.", ge=1)
    keep: int = key(3, "How many of the newest checkpoints to keep, besides the best and the final one.", ge=1)
    asynchronous: Bool = key(True, "Write while training goes on; costs a copy of the state in host memory.")
    best: Best = key(Best(), "Which checkpoint is the best one.")


class Supervise(Section):
    enabled: Bool = key(True, "Watch the ranks from a process beside them, and write incidents.")
    policy: Literal["note", "halt", "restart"] = key(
        "note",
        "When the run stands still: note it; halt, by an agreed stop where ranks still advance, else by killing them; "
        "or restart from the newest checkpoint.",
    )
    max_restarts: int = key(
        0,
        "How often a run whose rank died, or stood still, is brought back from its last checkpoint, in one command.",
        ge=0,
    )
    stall_floor_s: float = key(
        5,
        "Seconds within which a stall is noticed, whatever the pace: who has not moved for 85 % of it has stalled.",
        gt=0,
    )
    stall_factor: float = key(
        5, "A rank has stalled after this many times the 99th percentile of the phase it is in.", ge=1
    )
    start_limit_s: float = key(600, "Seconds that the start may take: there is no pace to go by.", gt=0)
    compile_limit_s: float = key(1800, "Seconds that one compilation may take.", gt=0)
    evaluate_limit_s: float = key(1200, "Seconds that the first evaluation may take; later ones go by the pace.", gt=0)
    checkpoint_limit_s: float = key(
        1200, "Seconds that the first checkpoint may take; later ones go by the pace.", gt=0
    )


class Profile(Section):
    start_step: int | None = key(None, "The first optimizer step to profile; null: no profile.", ge=1)
    num_steps: int = key(5, "How many steps to profile.", ge=1, le=1000)
    ranks: Literal["all"] | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] = key(
        [0], "Which ranks write a trace and a table of kernels."
    )


class Telemetry(Section):
    log_every: int = key(10, "Steps per row of metrics.csv.", ge=1)
    heartbeat_s: float = key(5, "Seconds between two heartbeats of each rank.", gt=0, le=86400)
    ledger: Bool = key(
        False, "Write each rank's sample ids and losses, the proof of what was trained; costs a synchronisation."
    )
    tensorboard: Bool = key(True, "Write TensorBoard files.")
    sync_timing: Bool = key(
        False, "Wait for the GPU at every border between phases, so that each has its own wall time; slower."
    )
    timing_ranks: Literal["rank0", "all"] = key(
        "rank0", "Whose phase times are written: rank 0's in metrics.csv, or every rank's, in timing/ as well."
    )
    nvtx: Bool = key(
        False, "Mark steps, their phases, evaluations and checkpoints with NVTX ranges, for Nsight Systems."
    )
    profile: Profile = key(Profile(), "A few steps under torch's profiler.")


class Stop(Section):
    patience: int | None = key(None, "End after this many evaluations without a better objective; null: never.", ge=1)
    min_delta: float = key(
        0.0,
        "By how much the objective must improve to count as better, for patience and for the best checkpoint.",
        ge=0,
    )
    max_hours: float | None = key(None, "End after this many hours.", gt=0)


class RunConfig(Section):
    """A whole configuration; recipes refine data, model, loss and evaluate."""

    recipe: str = key(..., "Which recipe trains.", IDENTITY)
    run: Run = key(Run(), "Name, place and seed.")
    launch: Launch = key(Launch(), "Processes on this machine.")
    data: Data = key(Data(), "What is trained on.")
    train: Train = key(Train(), "Batches, length and optimizer.")
    parallel: Parallel = key(Parallel(), "How ranks work together.")
    precision: Precision = key(Precision(), "Number formats.")
    attention: Attention = key(Attention(), "Attention kernel.")
    evaluate: Evaluate = key(Evaluate(), "When and how to evaluate.")
    checkpoint: Checkpoint = key(Checkpoint(), "When to save, and what to keep.")
    telemetry: Telemetry = key(Telemetry(), "What is written about the run.")
    supervise: Supervise = key(Supervise(), "Who watches the ranks, and what to do when they die or stand still.")
    stop: Stop = key(Stop(), "When to end early.")
