"""What of DeepSpeed's own configuration may be passed through with `parallel.deepspeed`, and why the rest may not.

    find_refused("zero_optimization.stage")   -> ("Paceline sets it", "set parallel.zero_stage")

DeepSpeed passes over a misspelt section in silence, so only names that were tried here get to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.config.nearest import nearest

_ZERO = "zero_optimization"
PASSED = frozenset(
    {
        "comms_logger.enabled",
        "comms_logger.prof_all",
        "comms_logger.verbose",
        "dump_state",
        "memory_breakdown",
        "wall_clock_breakdown",
        f"{_ZERO}.allgather_bucket_size",
        f"{_ZERO}.allgather_partitions",
        f"{_ZERO}.contiguous_gradients",
        f"{_ZERO}.overlap_comm",
        f"{_ZERO}.reduce_bucket_size",
        f"{_ZERO}.reduce_scatter",
        f"{_ZERO}.round_robin_gradients",
        f"{_ZERO}.stage3_max_live_parameters",
        f"{_ZERO}.stage3_max_reuse_distance",
        f"{_ZERO}.stage3_model_persistence_threshold",
        f"{_ZERO}.stage3_param_persistence_threshold",
        f"{_ZERO}.stage3_prefetch_bucket_size",
        f"{_ZERO}.sub_group_size",
        f"{_ZERO}.use_multi_rank_bucket_allreduce",
    }
)
"""By their dotted names."""

_BATCHES = ("the order of samples and the batches are Paceline's", "set train.global_batch, or train.micro_batch")
_PRECISION = ("forward and backward are cast by autocast over fp32 weights, as elsewhere", "set precision.mode")
_OFFLOAD = (
    "gradients then lie where they cannot be weighted over all ranks before the update",
    "leave it out: nothing is moved to the host's memory here",
)
_REFUSED = {
    f"{_ZERO}.stage": ("it is Paceline's to set", "set parallel.zero_stage"),
    f"{_ZERO}.offload_optimizer": _OFFLOAD,
    f"{_ZERO}.offload_param": _OFFLOAD,
    f"{_ZERO}.cpu_offload": _OFFLOAD,
    f"{_ZERO}.zenflow": _OFFLOAD,
    f"{_ZERO}.compute_grad_norm": (
        "a step that is not a number is left out by the norm that DeepSpeed computes",
        "leave it out",
    ),
    f"{_ZERO}.memory_efficient_linear": (
        "it replaces torch's linear for the whole process, and evaluations would have other digits",
        "leave it out",
    ),
    "train_batch_size": _BATCHES,
    "train_micro_batch_size_per_gpu": _BATCHES,
    "gradient_accumulation_steps": (_BATCHES[0], "set train.accumulate, or train.micro_batch"),
    "gradient_clipping": ("gradients are clipped when they are weighted over all ranks", "set train.clip_norm"),
    "fp16": _PRECISION,
    "bf16": _PRECISION,
    "torch_autocast": _PRECISION,
    "amp": _PRECISION,
    "data_types": _PRECISION,
    "optimizer": ("the update rule is Paceline's to build", "set train.optimizer.name and its other keys"),
    "scheduler": ("the learning rate is Paceline's to set", "set train.schedule.kind and its other keys"),
    "activation_checkpointing": ("it is Paceline's to do", "set train.activation_checkpointing"),
    "communication_data_type": ("gradients travel in fp32", "leave it out"),
    "tensorboard": ("Paceline writes the run's files", "set telemetry.tensorboard"),
    "csv_monitor": ("Paceline writes the run's files", "leave it out, and read metrics.csv"),
    "flops_profiler": ("Paceline has a profile of its own", "set telemetry.profile.start_step"),
    "checkpoint": ("checkpoints are Paceline's", "set the keys of checkpoint"),
}


def find_refused(name: str) -> tuple[str, str] | None:
    """(why, what to do instead) of a name that is not passed through."""
    if name in PASSED:
        return None
    for refused, answer in _REFUSED.items():
        if name == refused or name.startswith(f"{refused}."):
            return answer
    close = nearest(name, sorted(PASSED))
    return "it is none of those that are passed through", f"did you mean {close}?" if close else "leave it out"


def nest(passed: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping as DeepSpeed reads it: dotted names become sections."""
    tree: dict[str, Any] = {}
    for name, value in passed.items():
        *path, word = name.split(".")
        section = tree
        for part in path:
            section = section.setdefault(part, {})
        section[word] = value
    return tree
