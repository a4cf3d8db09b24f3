"""Settings that somebody gave and that have no effect on this machine, with these ranks; each is said once, with the reason."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.engine.context import Context


def find_ineffective(context: Context) -> Iterator[tuple[str, str]]:
    """(key, reason) of each key that was given and changes nothing in this run."""
    config, given, ranks = context.config, context.given, context.ranks
    has_gpu = ranks.device.type == "cuda"
    if not ranks.has_group:
        names = ["bucket_mb", "compression", "static_graph", "find_unused", "bucket_view", "timeout_s"]
        if config.parallel.compression == "powersgd":
            names += ["powersgd.rank", "powersgd.start_step"]
        for name in names:
            if f"parallel.{name}" in given:
                yield f"parallel.{name}", "one rank exchanges no gradients"
    if ranks.world_size == 1 and config.parallel.engine != "torch":
        yield "parallel.engine", "one rank trains without it"
        if config.parallel.deepspeed:
            yield "parallel.deepspeed", "one rank trains without it"
    if ranks.world_size == 1 and config.parallel.zero_stage:
        yield "parallel.zero_stage", "one rank has nobody to share with"
    elif ranks.world_size > 1 and config.parallel.engine == "deepspeed":
        if "parallel.bucket_mb" in given:
            name = "parallel.deepspeed.zero_optimization.reduce_bucket_size"
            yield "parallel.bucket_mb", f"DeepSpeed has buckets of its own; from stage 1 on {name} sets their size"
        if "parallel.check_every" in given and config.parallel.zero_stage == 3:
            yield "parallel.check_every", "at stage 3 no two ranks hold the same weights, so none can be compared"
    elif config.parallel.zero_stage > 1:
        if "parallel.bucket_mb" in given:
            yield "parallel.bucket_mb", f"stage {config.parallel.zero_stage} reduces a block's gradients at once"
        if "parallel.check_every" in given:
            reason = (
                f"at stage {config.parallel.zero_stage} no two ranks hold the same weights, so none can be compared"
            )
            yield "parallel.check_every", reason
    if ranks.world_size == 1 and "parallel.check_every" in given:
        yield "parallel.check_every", "one rank has nobody to compare its parameters with"
    if "precision.tf32" in given and not has_gpu:
        yield "precision.tf32", "there is no GPU"
    if "data.pin_memory" in given and not has_gpu:
        yield "data.pin_memory", "there is no GPU"
    if "telemetry.sync_timing" in given and not has_gpu:
        yield "telemetry.sync_timing", "there is no GPU: a CPU works in step with its clock"
    if "telemetry.nvtx" in given and not has_gpu:
        yield "telemetry.nvtx", "there is no GPU"
    if "telemetry.timing_ranks" in given and ranks.world_size == 1:
        yield "telemetry.timing_ranks", "metrics.csv has the times of the only rank"
